"""Step 3.7 of ``transformers``, Step3-VL with its encoder before Qwen 3, Step 3 with another one in
plain torch, and what the host reads of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate, scaled_dot_product_attention
from transformers import AutoConfig, PreTrainedModel, Qwen3Config, Qwen3Model
from transformers.activations import ACT2FN
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7.configuration_step3p7 import Step3p7Config
from transformers.models.step3p7.modeling_step3p7 import Step3p7VisionModel

from tests.zoo import remote
from tests.zoo.mixtures import Step3Config, Step3TextForCausalLM
from tests.zoo.renamed_mixture_specs import step
from tests.zoo.tokens import write_tokenizer

MARK = "<im_patch>"
STRIDE = 2  # of the first convolution that makes fewer tokens
OTHERS = ("<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>")


class StepVLConfig(Step3p7Config):
    """Published checkpoints bring another one, as code of their own."""

    model_type = "step3p7_qwen3"

    def __post_init__(self, **rest: Any) -> None:
        if isinstance(self.text_config, dict):
            self.text_config = Qwen3Config(**self.text_config)
        super().__post_init__(**rest)


class Step3VLConfig(Step3Config):
    """The text's, with what published checkpoints say of the eyes."""

    model_type = "step3_with_eyes"
    eyes: Any = None
    image_token_id: int = 0


for config, like in ((StepVLConfig, "step3p7"), (Step3VLConfig, Step3Config.model_type)):
    AutoConfig.register(config.model_type, config)
    # So that weights are written by their published names.
    register_checkpoint_conversion_mapping(
        config.model_type, get_checkpoint_conversion_mapping(like)
    )


class StepVLForConditionalGeneration(PreTrainedModel):
    config_class = StepVLConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        eyes, text = config.vision_config, config.text_config
        self.model = torch.nn.ModuleDict(
            {
                "vision_model": Step3p7VisionModel._from_config(eyes),
                "multi_modal_projector": torch.nn.Linear(
                    4 * eyes.hidden_size, text.hidden_size, bias=config.projector_bias
                ),
                "language_model": Qwen3Model._from_config(text),
            }
        )
        self.lm_head = torch.nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        pixel_values_local: torch.Tensor | None = None,
        num_local_patches: Any = (),
        **_: Any,
    ) -> CausalLMOutput:
        """As the processor makes them; ``input_ids`` [1, n]."""
        text = self.model["language_model"]
        states = text.embed_tokens(input_ids)
        where = input_ids[0] == self.config.image_token_id
        views = pixel_values, pixel_values_local
        states = _with_images(states, where, self._see, *views, num_local_patches)
        made = text(inputs_embeds=states, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(made))

    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        """[views, tokens, hidden]."""
        made = self.model["vision_model"](pixels).last_hidden_state
        projected: torch.Tensor = self.model["multi_modal_projector"](made)
        return projected


class Step3VLForConditionalGeneration(Step3TextForCausalLM):
    config_class = Step3VLConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size, wide = config.eyes["hidden_size"], config.eyes["output_hidden_size"]
        self.vision_model = Eyes(config.eyes)
        self.vit_downsampler = torch.nn.Conv2d(size, wide, 2, STRIDE)
        self.vit_downsampler2 = torch.nn.Conv2d(wide, 2 * wide, 3, 2, 1)
        self.vit_large_projector = torch.nn.Linear(2 * wide, config.hidden_size, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        pixel_values_local: torch.Tensor | None = None,
        num_local_patches: Any = (),
        **_: Any,
    ) -> Any:
        """As the processor makes them; ``input_ids`` [1, n]."""
        states = self.model.embed_tokens(input_ids)
        where = input_ids[0] == self.config.image_token_id
        views = pixel_values, pixel_values_local
        states = _with_images(states, where, self._see, *views, num_local_patches)
        return super().forward(inputs_embeds=states, use_cache=False)

    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        """[views, tokens, hidden]."""
        tokens = self.vit_downsampler2(self.vit_downsampler(self.vision_model(pixels)))
        projected: torch.Tensor = self.vit_large_projector(tokens.flatten(2).mT)
        return projected


class Eyes(torch.nn.Module):
    """The class counts four times as one of those that are attended to."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, self.side = config["hidden_size"], config["image_size"] // config["patch_size"]
        self.embeddings = torch.nn.Module()
        self.embeddings.class_embedding = torch.nn.Parameter(torch.zeros(1, size))
        self.embeddings.patch_embedding = torch.nn.Conv2d(3, size, *[config["patch_size"]] * 2)
        self.embeddings.position_embedding = torch.nn.Embedding(1 + self.side**2, size)
        self.transformer = torch.nn.Module()
        self.transformer.layers = torch.nn.ModuleList(
            EyesLayer(config) for _ in range(config["num_hidden_layers"])
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, 3, side, side]; [views, size, lines, columns]."""
        patches = self.embeddings.patch_embedding(pixels)
        begin, table = self.embeddings.position_embedding.weight.tensor_split([1])
        table = table.T.unflatten(1, (self.side, self.side))[None]
        sizes = [*patches.shape[2:]]
        if sizes != [self.side, self.side]:
            table = interpolate(table.float(), sizes, mode="bicubic", antialias=True)
        patches = (patches + table.to(patches.dtype)).flatten(2).mT
        begin = (self.embeddings.class_embedding + begin).expand(len(patches), 4, -1)
        states = torch.cat([begin, patches], 1)
        for layer in self.transformer.layers:
            states = layer(states)
        return states[:, 4:].mT.unflatten(2, sizes)


class EyesLayer(torch.nn.Module):
    """Norms what it adds."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, wide = config["hidden_size"], config["intermediate_size"]
        self.heads, eps = config["num_attention_heads"], config["layer_norm_eps"]
        self.layer_norm1, self.layer_norm2 = (torch.nn.LayerNorm(size, eps) for _ in range(2))
        self.self_attn = torch.nn.ModuleDict(
            {
                "qkv_proj": torch.nn.Linear(size, 3 * size),
                "out_proj": torch.nn.Linear(size, size),
            }
        )
        self.mlp = torch.nn.ModuleDict(
            {"fc1": torch.nn.Linear(size, wide), "fc2": torch.nn.Linear(wide, size)}
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` [views, n, size]; the same."""
        heads = self.self_attn["qkv_proj"](states).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        states = states + self.layer_norm1(self.self_attn["out_proj"](attended))
        inner = ACT2FN["quick_gelu"](self.mlp["fc1"](states))
        return states + self.layer_norm2(self.mlp["fc2"](inner))


def _with_images(
    states: torch.Tensor,
    where: torch.Tensor,
    see: Callable[[torch.Tensor], torch.Tensor],
    wholes: torch.Tensor | None,
    pieces: torch.Tensor | None,
    counts: list[int],
) -> torch.Tensor:
    """``states`` [1, n, hidden], with what ``see`` makes of images ``where`` [n] they are: the
    pieces of each one, then the whole."""
    if wholes is None:
        return states
    tokens = see(wholes)
    split = [tokens[:0]] * len(tokens) if pieces is None else see(pieces).split(counts)
    seen = torch.cat(
        [part.flatten(0, -2) for pair in zip(split, tokens, strict=True) for part in pair]
    )
    return states.index_copy(1, where.nonzero()[: len(seen), 0], seen[None])


def columns_first(turn: Any, x: torch.Tensor, places: torch.Tensor) -> Any:
    """``places`` [..., 2] by line and column.  Published code turns the first half of a head's
    channels by column; ``transformers`` does so by line."""
    return turn(x, places.flip(-1))


@dataclass(frozen=True)
class Processor:
    """The host's, which cuts images; ``transformers``' model calls its pixels otherwise."""

    processor: Any

    def __call__(self, text: str, images: Any = None, **_: Any) -> dict[str, Any]:
        made = dict(self.processor(text=text, images=images, return_tensors="pt"))
        if images:
            made.pop("patch_newline_mask")
            made["num_local_patches"] = made.pop("num_patches").tolist()
            patches = made.pop("patch_pixel_values")
            made["pixel_values_local"] = patches if len(patches) else None
        return made


def processor(folder: Path) -> Processor:
    from vllm.transformers_utils.processors.step3_vl import Step3VLImageProcessor, Step3VLProcessor

    tokenizer = write_tokenizer(folder, (MARK, *OTHERS))
    remote.put("step_config", folder)
    return Processor(Step3VLProcessor(Step3VLImageProcessor(), tokenizer))


def published(config: dict[str, Any]) -> dict[str, Any]:
    """In words of the code that comes with a checkpoint."""
    eyes, text = config["vision_config"], config["text_config"]
    is_mixture = text["model_type"] == "step3p5"
    if is_mixture:
        text = step(text)
    return {
        "model_type": "step3p7" if is_mixture else "step_robotics",
        "auto_map": {"AutoConfig": f"step_config.{'Step3p7' if is_mixture else 'StepVL'}Config"},
        "vision_config": {
            "width": eyes["hidden_size"],
            "layers": eyes["num_hidden_layers"],
            "heads": eyes["num_attention_heads"],
            "mlp_ratio": eyes["mlp_ratio"],
            "ls_init_value": eyes["layer_scale_init_value"],
        },
        "text_config": {
            **text,
            "architectures": ["Step3p5ForCausalLM" if is_mixture else "Qwen3ForCausalLM"],
        },
        "projector_bias": config["projector_bias"],
        "image_token_id": config["image_token_id"],
    }


def published_step3(config: dict[str, Any]) -> dict[str, Any]:
    eyes = config.pop("eyes")
    text = {**config, "model_type": "step3_text", "architectures": ["Step3TextForCausalLM"]}
    return {
        "model_type": "step3_vl",
        "vision_config": {**eyes, "hidden_act": "quick_gelu"},
        "text_config": text,
        "understand_projector_stride": STRIDE,
        "projector_bias": False,
        "image_token_id": config["image_token_id"],
    }

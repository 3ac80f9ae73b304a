"""Step 3.7 of ``transformers``, Step3-VL with the same encoder before Qwen 3, and what the host
reads of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel, Qwen3Config, Qwen3Model
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.step3p7.configuration_step3p7 import Step3p7Config
from transformers.models.step3p7.modeling_step3p7 import Step3p7VisionModel

from tests.zoo import remote
from tests.zoo.renamed_mixture_specs import step
from tests.zoo.tokens import write_tokenizer

MARK = "<im_patch>"
OTHERS = ("<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>")


class StepVLConfig(Step3p7Config):
    """Published checkpoints bring another one, as code of their own."""

    model_type = "step3p7_qwen3"

    def __post_init__(self, **rest: Any) -> None:
        if isinstance(self.text_config, dict):
            self.text_config = Qwen3Config(**self.text_config)
        super().__post_init__(**rest)


AutoConfig.register(StepVLConfig.model_type, StepVLConfig)
# So that weights are written by their published names.
register_checkpoint_conversion_mapping(
    StepVLConfig.model_type, get_checkpoint_conversion_mapping("step3p7")
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
        """As the processor makes them; ``input_ids`` [1, n].  An image's pieces come before it."""
        text = self.model["language_model"]
        states = text.embed_tokens(input_ids)
        if pixel_values is not None:
            wholes = self._see(pixel_values)
            parts = [wholes[:0]] * len(wholes)
            if pixel_values_local is not None:
                parts = [*self._see(pixel_values_local).split(num_local_patches)]
            seen = torch.cat(
                [
                    tokens.flatten(0, -2)
                    for pair in zip(parts, wholes, strict=True)
                    for tokens in pair
                ]
            )
            where = (input_ids[0] == self.config.image_token_id).nonzero()[: len(seen), 0]
            states = states.index_copy(1, where, seen[None])
        made = text(inputs_embeds=states, use_cache=False).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(made))

    def _see(self, pixels: torch.Tensor) -> torch.Tensor:
        """[views, tokens, hidden]."""
        made = self.model["vision_model"](pixels).last_hidden_state
        projected: torch.Tensor = self.model["multi_modal_projector"](made)
        return projected


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

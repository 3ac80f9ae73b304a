"""GLM-4V: an encoder of patches that puts norms behind its layers, and GLM, in plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import gelu, scaled_dot_product_attention, silu
from transformers import AutoConfig, GlmConfig, GlmForCausalLM

from tests.zoo.processors import FIRST, SIDE, _image_processor
from tests.zoo.renamed_specs import CHATGLM
from tests.zoo.tokens import write_tokenizer

BEGIN, PATCH, END = "<|begin_of_image|>", "<|endoftext|>", "<|end_of_image|>"
MARK = BEGIN + PATCH + END
JOINED = 2  # patches along a side that are one token
TOKENS = (SIDE // 14 // JOINED) ** 2
VISION = {
    "dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_size": 64,
    "image_size": SIDE,
    "in_channels": 3,
    "intermediate_size": 112,
    "layer_norm_eps": 1e-6,
    "num_heads": 2,
    "num_hidden_layers": 3,
    "num_positions": 1 + (SIDE // 14) ** 2,
    "patch_size": 14,
    "scaling_factor": 8.0,
}


class GLM4VConfig(GlmConfig):
    """The host brings one of its own for published checkpoints."""

    model_type = "chatglm"


AutoConfig.register(GLM4VConfig.model_type, GLM4VConfig)


class GLM4VForCausalLM(GlmForCausalLM):
    config_class = GLM4VConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.vision = Tower(config)

    def forward(
        self, input_ids: torch.Tensor, pixel_values: torch.Tensor | None = None, **_: Any
    ) -> Any:
        """``input_ids`` [1, n]; pixel_values [1, 3, SIDE, SIDE] of its image, if it has one, whose
        patches are all at one position."""
        states = self.model.embed_tokens(input_ids)
        steps = torch.ones_like(input_ids)
        all_seen = torch.ones_like(input_ids)  # else equal positions were two texts to transformers
        if pixel_values is not None:
            begin = input_ids[0].tolist().index(FIRST)
            own = torch.arange(begin, begin + TOKENS + 2)
            states = states.index_copy(1, own, self.model.vision(pixel_values)[None])
            steps[:, own[2:-1]] = 0
        return super().forward(
            inputs_embeds=states,
            attention_mask=all_seen,
            position_ids=steps.cumsum(-1) - 1,
            use_cache=False,
        )


class Tower(torch.nn.Module):
    """Of one image."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, text = VISION["hidden_size"], config.hidden_size
        self.patch_embedding = Patches(size)
        self.transformer = torch.nn.ModuleDict(
            {"layers": torch.nn.ModuleList(Layer() for _ in range(VISION["num_hidden_layers"]))}
        )
        self.conv = torch.nn.Conv2d(size, text, JOINED, JOINED)
        self.linear_proj = Joined(text, config.intermediate_size)
        self.boi = torch.nn.Parameter(torch.zeros(1, 1, text))
        self.eoi = torch.nn.Parameter(torch.zeros(1, 1, text))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [1, 3, SIDE, SIDE]; states of its tokens [TOKENS + 2, hidden]."""
        states = self.patch_embedding(pixels)
        for layer in self.transformer["layers"]:
            states = layer(states)
        side = SIDE // VISION["patch_size"]
        grid = states[1:].T.unflatten(1, (side, side))
        patches = self.linear_proj(self.conv(grid[None])[0].flatten(1).T)
        whole = torch.cat([self.boi[0], patches, self.eoi[0]])
        return whole / VISION["scaling_factor"]


class Patches(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        side = VISION["patch_size"]
        self.proj = torch.nn.Conv2d(3, size, side, side)
        self.cls_embedding = torch.nn.Parameter(torch.zeros(1, size))
        self.position_embedding = torch.nn.Embedding(VISION["num_positions"], size)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [1, 3, SIDE, SIDE]; [1 + patches, size]."""
        patches = self.proj(pixels)[0].flatten(1).T
        return torch.cat([self.cls_embedding, patches]) + self.position_embedding.weight


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size, inner = VISION["hidden_size"], VISION["intermediate_size"]
        self.attention = torch.nn.ModuleDict(
            {
                "query_key_value": torch.nn.Linear(size, 3 * size),
                "dense": torch.nn.Linear(size, size),
            }
        )
        self.mlp = torch.nn.ModuleDict(
            {"fc1": torch.nn.Linear(size, inner), "fc2": torch.nn.Linear(inner, size)}
        )
        self.input_layernorm = torch.nn.LayerNorm(size, VISION["layer_norm_eps"])
        self.post_attention_layernorm = torch.nn.LayerNorm(size, VISION["layer_norm_eps"])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` [n, size]; the same."""
        heads = self.attention["query_key_value"](states)
        query, key, value = heads.unflatten(-1, (3, VISION["num_heads"], -1)).permute(1, 2, 0, 3)
        attended = scaled_dot_product_attention(query, key, value).transpose(0, 1).flatten(1)
        states = states + self.input_layernorm(self.attention["dense"](attended))
        fed = self.mlp["fc2"](gelu(self.mlp["fc1"](states)))
        return states + self.post_attention_layernorm(fed)


class Joined(torch.nn.Module):
    """What is between the encoder and the text."""

    def __init__(self, size: int, wide: int) -> None:
        super().__init__()
        self.linear_proj = torch.nn.Linear(size, size, bias=False)
        self.norm1 = torch.nn.LayerNorm(size)
        self.gate_proj = torch.nn.Linear(size, wide, bias=False)
        self.dense_h_to_4h = torch.nn.Linear(size, wide, bias=False)
        self.dense_4h_to_h = torch.nn.Linear(wide, size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` [n, size]; the same."""
        x = gelu(self.norm1(self.linear_proj(states)))
        return self.dense_4h_to_h(silu(self.gate_proj(x)) * self.dense_h_to_4h(x))


@dataclass(frozen=True)
class Processor:
    tokenizer: Any
    images: Any

    def __call__(self, text: str, images: Any = (), **_: Any) -> dict[str, Any]:
        """A text with the tokens of its image, and this."""
        made = {}
        if images:
            made["pixel_values"] = self.images(images, return_tensors="pt").pixel_values
        text = text.replace(MARK, BEGIN + TOKENS * PATCH + END)
        return {"input_ids": self.tokenizer(text, return_tensors="pt").input_ids, **made}


def processor(folder: Path) -> Any:
    tokenizer = write_tokenizer(folder, [BEGIN, PATCH, END])
    size = {"height": SIDE, "width": SIDE}
    return Processor(tokenizer, _image_processor("CLIP", size=size, do_center_crop=False))


def published(config: dict[str, Any]) -> dict[str, Any]:
    """In its own words for everything."""
    own = {name: config[name] for name in CHATGLM.config if name != "rms_norm_eps"}
    return {
        **own,
        "model_type": "chatglm",
        "boi_token_id": FIRST,
        "eoi_token_id": FIRST + 2,
        "eos_token_id": config["eos_token_id"],
        "hidden_size": config["hidden_size"],
        "num_attention_heads": config["num_attention_heads"],
        "pad_token_id": FIRST + 1,
        "tie_word_embeddings": False,
        "vision_config": VISION,
    }

"""dots.ocr: an encoder of patches that turn by row and column before Qwen 2, in plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, apply_rotary_pos_emb

from tests.zoo.processors import _keep, _qwen_images
from tests.zoo.tokens import write_tokenizer

MERGED = 2  # patches along a side that are one token
NAMED = {"image_token": "<|imgpad|>", "video_token": "<|video_pad|>"}


class DotsOCRConfig(Qwen2Config):
    """Published checkpoints bring it as code of their own."""

    model_type = "dots_ocr"
    vision_config: Any = None
    image_token_id: int = 0


AutoConfig.register(DotsOCRConfig.model_type, DotsOCRConfig)


class DotsOCRForCausalLM(Qwen2ForCausalLM):
    config_class = DotsOCRConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vision_tower = Tower(config.vision_config)

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; pixel_values [patches, numbers] of all images, one after the other,
        image_grid_thw [images, 3] their times, rows and columns."""
        states = self.model.embed_tokens(input_ids)
        if pixel_values is not None and image_grid_thw is not None:
            parts = pixel_values.split(image_grid_thw.prod(-1).tolist())
            seen = torch.cat(
                [
                    self.vision_tower(part, rows, columns)
                    for part, (_, rows, columns) in zip(parts, image_grid_thw.tolist(), strict=True)
                ]
            )
            marked = input_ids[0] == self.config.image_token_id
            states = states.index_copy(1, marked.nonzero()[: len(seen), 0], seen[None])
        return super().forward(inputs_embeds=states, use_cache=False)


class Tower(torch.nn.Module):
    """Of one image."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, epsilon = config["embed_dim"], config["rms_norm_eps"]
        self.patch_embed = torch.nn.Module()
        self.patch_embed.patchifier = Patches(size, config["patch_size"], epsilon)
        self.blocks = torch.nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.post_trunk_norm = Qwen2RMSNorm(size, epsilon)
        self.merger = Merger(size, config["hidden_size"])
        self.quarter = size // config["num_attention_heads"] // 4  # of a head

    def forward(self, pixels: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """``pixels`` [rows * columns, numbers], those of a token one after the other; states of
        tokens [rows * columns / 4, hidden]."""
        states = self.patch_embed.patchifier(pixels)
        turns = self._turns(rows, columns)
        for block in self.blocks:
            states = block(states, turns)
        return self.merger(self.post_trunk_norm(states))

    def _turns(self, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [1, patches, head], by row in the first quarter of channels and the
        third, by column in the others."""
        grid = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        blocks = grid.view(rows // MERGED, MERGED, columns // MERGED, MERGED, 2)
        places = blocks.transpose(1, 2).reshape(-1, 2, 1)
        frequencies = 10000.0 ** -(torch.arange(self.quarter) / self.quarter)
        angles = (places * frequencies).flatten(1).repeat(1, 2)[None]
        return angles.cos(), angles.sin()


class Patches(torch.nn.Module):
    def __init__(self, size: int, side: int, epsilon: float) -> None:
        super().__init__()
        self.proj = torch.nn.Conv2d(3, size, side, side)
        self.norm = Qwen2RMSNorm(size, epsilon)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [patches, 3 * side * side]; [patches, size]."""
        return self.norm(self.proj(pixels.view(-1, 3, *self.proj.kernel_size)).flatten(1))


class Block(torch.nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        size, inner = config["embed_dim"], config["intermediate_size"]
        self.heads = config["num_attention_heads"]
        self.norm1 = Qwen2RMSNorm(size, config["rms_norm_eps"])
        self.norm2 = Qwen2RMSNorm(size, config["rms_norm_eps"])
        self.attn = torch.nn.ModuleDict(
            {
                "qkv": torch.nn.Linear(size, 3 * size, bias=False),
                "proj": torch.nn.Linear(size, size, bias=False),
            }
        )
        self.mlp = torch.nn.ModuleDict(
            {
                "fc1": torch.nn.Linear(size, inner, bias=False),
                "fc2": torch.nn.Linear(inner, size, bias=False),
                "fc3": torch.nn.Linear(size, inner, bias=False),
            }
        )

    def forward(
        self, states: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """``states`` [patches, size]; the same."""
        heads = self.attn["qkv"](self.norm1(states)).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(1, 2, 0, 3)[:, None]
        query, key = apply_rotary_pos_emb(query, key, *(part.to(states.dtype) for part in turns))
        attended = scaled_dot_product_attention(query, key, value)[0]
        states = states + self.attn["proj"](attended.transpose(0, 1).flatten(1))
        x = self.norm2(states)
        return states + self.mlp["fc2"](silu(self.mlp["fc1"](x)) * self.mlp["fc3"](x))


class Merger(torch.nn.Module):
    def __init__(self, size: int, text: int) -> None:
        super().__init__()
        wide = MERGED**2 * size
        self.ln_q = torch.nn.LayerNorm(size, 1e-6)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(wide, wide), torch.nn.GELU(), torch.nn.Linear(wide, text)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` [patches, size]; [patches / 4, hidden]."""
        return self.mlp(self.ln_q(states).view(-1, self.mlp[0].in_features))


def processor(folder: Path) -> Any:
    from transformers import Qwen2VLProcessor, Qwen2VLVideoProcessor

    tokenizer = write_tokenizer(folder, list(NAMED.values()), extra_special_tokens=NAMED)
    images = _qwen_images(14, temporal_patch_size=1)
    return _keep(Qwen2VLProcessor(images, tokenizer, Qwen2VLVideoProcessor()), folder)

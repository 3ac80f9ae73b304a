"""Phi-3 vision: CLIP's patches by four, with ends of lines, before Phi-3, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM

from tests.zoo.remote.phi3v_processor import IMAGE_TOKEN, SIDE

CLIP_SIZE = 1024  # the host has the sizes of CLIP-L, whatever the config says
LAYERS = 1
SIDE_OF_TOKENS = 12  # of a tile, each of two by two patches


class Phi3VConfig(Phi3Config):
    """Published checkpoints bring it as code of their own."""

    model_type = "phi3_v"


AutoConfig.register(Phi3VConfig.model_type, Phi3VConfig)


class Phi3VForCausalLM(Phi3ForCausalLM):
    config_class = Phi3VConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.vision_embed_tokens = Images(config)

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        image_sizes: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; pixel_values [images, 1 + tiles, 3, SIDE, SIDE]; image_sizes
        [images, 2] in pixels, of the tiles together."""
        states = self.model.embed_tokens(input_ids)
        if pixel_values is not None and image_sizes is not None:
            grids = (image_sizes // SIDE).tolist()
            seen = torch.cat(
                [
                    self.model.vision_embed_tokens(tiles, rows, columns)
                    for tiles, (rows, columns) in zip(pixel_values, grids, strict=True)
                ]
            )
            where = (input_ids[0] == IMAGE_TOKEN).nonzero()[: len(seen), 0]
            states = states.index_copy(1, where, seen[None])
        return super().forward(inputs_embeds=states, use_cache=False)


class Images(torch.nn.Module):
    """Of one image, the lines of all of its tiles together, then those of the whole."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        clip = CLIPVisionConfig(
            hidden_size=CLIP_SIZE,
            intermediate_size=4 * CLIP_SIZE,
            num_attention_heads=16,
            num_hidden_layers=LAYERS,
            image_size=SIDE,
            patch_size=14,
            attn_implementation="sdpa",
        )
        wide, size = 4 * CLIP_SIZE, config.hidden_size
        self.img_processor = CLIPVisionModel(clip)
        self.glb_GN = torch.nn.Parameter(torch.zeros(1, 1, wide))
        self.sub_GN = torch.nn.Parameter(torch.zeros(1, 1, 1, wide))
        self.img_projection = torch.nn.Sequential(
            torch.nn.Linear(wide, size), torch.nn.GELU(), torch.nn.Linear(size, size)
        )

    def forward(self, tiles: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        """``tiles`` [1 + TILES, 3, SIDE, SIDE], the whole first; [tokens, hidden]."""
        patches = self.img_processor(tiles[: 1 + rows * columns]).last_hidden_state[:, 1:]
        side = SIDE_OF_TOKENS
        grid = patches.unflatten(1, (side, 2, side, 2)).transpose(2, 3).flatten(3)
        whole, parts = grid[:1], grid[1:]
        tiled = parts.unflatten(0, (rows, columns)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        lines = torch.cat([self._lines(tiled), self.glb_GN[0], self._lines(whole[0])])
        return self.img_projection(lines)

    def _lines(self, grid: torch.Tensor) -> torch.Tensor:
        """``grid`` [lines, tokens, wide], each line with its end, one after the other."""
        ends = self.sub_GN[0].expand(len(grid), -1, -1)
        return torch.cat([grid, ends], 1).flatten(0, 1)

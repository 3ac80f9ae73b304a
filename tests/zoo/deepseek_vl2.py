"""DeepSeek-VL2: SigLIP's encoder and DeepSeek MoE, in plain torch between them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import SiglipVisionConfig, SiglipVisionModel
from transformers.image_processing_utils import select_best_resolution

from tests.zoo.deepseek_ocr import MARK, DeepseekOCRConfig, as_published, marked, pixels_of
from tests.zoo.rebuilt import DeepseekForCausalLM
from tests.zoo.tokens import write_tokenizer

SIDE = 50  # pixels of a tile: three patches and a rest, as the 384 of published ones have 27
PATCH = 14
JOINED = 2  # patches along a side that are one token; the last one lacks a half
TOKENS = -(-(SIDE // PATCH) // JOINED)  # along a side of a tile
GRIDS = ((1, 1), (2, 1), (1, 2), (2, 2))  # columns and rows of tiles
GREY = 127
SIGLIP = {
    "hidden_size": 64,
    "intermediate_size": 240,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "image_size": SIDE,
    "patch_size": PATCH,
    "vision_use_head": False,
}
NAMES = (
    (r"^model\.", "language.model."),
    (r"^lm_head", "language.lm_head"),
    (r"^vision\.(vision_model\.)?", "vision."),
    (r"^(vision\.)embeddings\.patch_embedding", r"\1patch_embed.proj"),
    (r"^(vision\.)embeddings\.position_embedding\.weight", r"\1pos_embed"),
    (r"^(vision\.)encoder\.layers", r"\1blocks"),
    (r"^(vision\.)post_layernorm", r"\1norm"),
    (r"^(vision\..*)layer_norm([12])", r"\1norm\2"),
    (r"^(vision\..*)self_attn\.q_proj", r"\1attn.qkv|0"),
    (r"^(vision\..*)self_attn\.k_proj", r"\1attn.qkv|1"),
    (r"^(vision\..*)self_attn\.v_proj", r"\1attn.qkv|2"),
    (r"^(vision\..*)self_attn\.out_proj", r"\1attn.proj"),
    (r".*gate\.e_score_correction_bias", ""),
)


class DeepseekVLV2ForCausalLM(DeepseekForCausalLM):
    config_class = DeepseekOCRConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        size, seen = config.hidden_size, SIGLIP["hidden_size"]
        siglip = SiglipVisionConfig(**SIGLIP)
        self.vision = SiglipVisionModel._from_config(siglip, attn_implementation="sdpa")
        self.vision.attn_pool = Unused(seen, SIGLIP["intermediate_size"])
        self.projector = torch.nn.ModuleDict(
            {
                "layers": torch.nn.Sequential(
                    torch.nn.Linear(JOINED**2 * seen, size),
                    torch.nn.GELU(),
                    torch.nn.Linear(size, size),
                )
            }
        )
        self.image_newline = torch.nn.Parameter(torch.zeros(size))
        self.view_seperator = torch.nn.Parameter(torch.zeros(size))

    def forward(
        self,
        input_ids: torch.Tensor,
        pixel_values: torch.Tensor | None = None,
        grids: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; pixel_values [views, 3, SIDE, SIDE]: of each image the whole and
        its tiles; grids [images, 2] their columns and rows."""
        states = self.model.embed_tokens(input_ids)
        if pixel_values is not None and grids is not None:
            views = self._encode(pixel_values).split((grids.prod(-1) + 1).tolist())
            seen = torch.cat(
                [self._see(*image) for image in zip(views, grids.tolist(), strict=True)]
            )
            marked = input_ids[0] == self.config.image_token_id
            states = states.index_copy(1, marked.nonzero()[: len(seen), 0], seen[None])
        return super().forward(inputs_embeds=states, use_cache=False)

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, 3, SIDE, SIDE]; states of tokens [views, TOKENS, TOKENS, hidden]."""
        side = SIDE // PATCH
        patches = self.vision(pixels).last_hidden_state.unflatten(1, (side, side))
        missing = TOKENS * JOINED - side
        patches = pad(patches, (0, 0, 0, missing, 0, missing))
        blocks = patches.unflatten(2, (TOKENS, JOINED)).unflatten(1, (TOKENS, JOINED))
        # A token's numbers: of each channel those of its four patches.
        return self.projector["layers"](blocks.permute(0, 1, 3, 5, 2, 4).flatten(3))

    def _see(self, views: torch.Tensor, grid: list[int]) -> torch.Tensor:
        """The whole, what ends it, and the tiles, line by line through all of them."""
        columns, rows = grid
        by_place = views[1:].unflatten(0, (rows, columns)).transpose(1, 2).flatten(2, 3)
        whole, tiles = self._lines(views[:1]), self._lines(by_place)
        return torch.cat([whole, self.view_seperator[None], tiles])

    def _lines(self, grid: torch.Tensor) -> torch.Tensor:
        """``grid`` [parts, lines, tokens, hidden]; each line with its end."""
        ends = self.image_newline.expand(*grid.shape[:2], 1, -1)
        return torch.cat([grid, ends], 2).flatten(0, 2)


class Unused(torch.nn.Module):
    """What checkpoints have of SigLIP's head."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.latent = torch.nn.Parameter(torch.zeros(1, 1, size))
        self.q = torch.nn.Linear(size, size)
        self.kv = torch.nn.Linear(size, 2 * size)
        self.proj = torch.nn.Linear(size, size)
        self.norm = torch.nn.LayerNorm(size)
        self.mlp = torch.nn.ModuleDict(
            {"fc1": torch.nn.Linear(size, inner), "fc2": torch.nn.Linear(inner, size)}
        )


@dataclass(frozen=True)
class Processor:
    tokenizer: Any

    def __call__(self, text: str, images: Any = (), **_: Any) -> dict[str, Any]:
        """A text with as many marks as its images have tokens, and these."""
        grids = [_grid(*image.size) for image in images]
        made = marked(self.tokenizer, text, [_tokens(*grid) for grid in grids])
        if not images:
            return made
        views = [v for image, grid in zip(images, grids, strict=True) for v in _views(image, *grid)]
        return {**made, "pixel_values": torch.stack(views), "grids": torch.tensor(grids)}


def _grid(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of tiles that keep the most of an image."""
    sizes = [(rows * SIDE, columns * SIDE) for columns, rows in GRIDS]
    best_height, best_width = select_best_resolution((height, width), sizes)
    return best_width // SIDE, best_height // SIDE


def _tokens(columns: int, rows: int) -> int:
    """With ends of lines, and of the whole."""
    return TOKENS * (TOKENS + 1) + 1 + rows * TOKENS * (columns * TOKENS + 1)


def _views(image: Any, columns: int, rows: int) -> list[torch.Tensor]:
    from PIL import ImageOps

    def padded(columns: int, rows: int) -> torch.Tensor:
        size = (columns * SIDE, rows * SIDE)
        return pixels_of(ImageOps.pad(image, size, color=(GREY,) * 3))

    tiles = [tile for line in padded(columns, rows).split(SIDE, 1) for tile in line.split(SIDE, 2)]
    return [padded(1, 1), *tiles]


def processor(folder: Path) -> Any:
    _make_host_small()
    tokenizer = write_tokenizer(folder, [MARK])
    said = {
        "processor_class": "DeepseekVLV2Processor",
        "candidate_resolutions": [[columns * SIDE, rows * SIDE] for columns, rows in GRIDS],
        "downsample_ratio": JOINED,
        "image_token": MARK,
        "patch_size": PATCH,
    }
    (folder / "processor_config.json").write_text(json.dumps(said))
    return Processor(tokenizer)


def _make_host_small() -> None:
    """In this process and those forked from it, timm makes encoders of the sizes above: those of
    the host's are no matter of config.json, and take minutes."""
    import timm

    make = timm.create_model
    own = {
        "depth": SIGLIP["num_hidden_layers"],
        "embed_dim": SIGLIP["hidden_size"],
        "img_size": SIDE,
        "mlp_ratio": SIGLIP["intermediate_size"] / SIGLIP["hidden_size"],
        "num_heads": SIGLIP["num_attention_heads"],
    }
    timm.create_model = lambda name, **options: make(name, **{**options, **own})


def published(config: dict[str, Any]) -> dict[str, Any]:
    made = as_published(config, SIGLIP["hidden_size"], SIDE)
    return {
        **made,
        "candidate_resolutions": [[columns * SIDE, rows * SIDE] for columns, rows in GRIDS],
        "projector_config": {
            **made["projector_config"],
            "depth": 2,
            "downsample_ratio": JOINED,
            "mlp_ratio": 1,
            "projector_type": "downsample_mlp_gelu",
        },
    }

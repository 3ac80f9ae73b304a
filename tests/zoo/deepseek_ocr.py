"""DeepSeek-OCR: SAM's encoder, CLIP's layers behind it and DeepSeek MoE, in plain torch between
them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate
from transformers import AutoConfig, CLIPVisionConfig, CLIPVisionModel, SamVisionConfig
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.sam.modeling_sam import SamVisionEncoder

from tests.zoo.rebuilt import Deepseek1Config, DeepseekForCausalLM
from tests.zoo.tokens import write_tokenizer

MARK = "<image>"
WHOLE, TILE = 256, 128  # pixels of a side; published are 1,024 and 640
TOKEN = 64  # pixels of a token's side
TILES = 2, 6  # as few and as many
GREY = 127
WIDE = 1024  # of what both encoders hand on
SAM = {
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "global_attn_indexes": [1, 3],
}
CLIP = {
    "hidden_size": WIDE,
    "intermediate_size": 4 * WIDE,
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "image_size": 224,
    "patch_size": 14,
}
NAMES = (
    (r"(sam_model\.)layers", r"\1blocks"),
    (r"(sam_model\..*)layer_norm([12])", r"\1norm\2"),
    (r"(sam_model\.patch_embed\.)projection", r"\1proj"),
    (r"(sam_model\.neck\.)conv1", r"\g<1>0"),
    (r"(sam_model\.neck\.)norm1", r"\g<1>1"),
    (r"(sam_model\.neck\.)conv2", r"\g<1>2"),
    (r"(sam_model\.neck\.)norm2", r"\g<1>3"),
    (r"(vision_model\.)encoder", r"\1transformer"),
    (r"(vision_model\..*)q_proj", r"\1qkv_proj|0"),
    (r"(vision_model\..*)k_proj", r"\1qkv_proj|1"),
    (r"(vision_model\..*)(?<!qk)v_proj", r"\1qkv_proj|2"),
    (r".*vision_model\.post_layernorm.*", ""),
    (r".*gate\.e_score_correction_bias", ""),
)


class DeepseekOCRConfig(Deepseek1Config):
    """The host brings one of its own for published checkpoints."""

    model_type = "deepseek_vl_v2"
    image_token_id: int = 0


AutoConfig.register(DeepseekOCRConfig.model_type, DeepseekOCRConfig)
register_checkpoint_conversion_mapping(
    DeepseekOCRConfig.model_type, get_checkpoint_conversion_mapping("glm4_moe")
)


class DeepseekOCRForCausalLM(DeepseekForCausalLM):
    config_class = DeepseekOCRConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # At the usual 1e-10 all pictures are one.
        sam = SamVisionConfig(**SAM, initializer_range=0.02)
        self.model.sam_model = Sam._from_config(sam, attn_implementation="eager")
        self.model.vision_model = CLIPVisionModel._from_config(CLIPVisionConfig(**CLIP))
        self.model.projector = torch.nn.ModuleDict(
            {"layers": torch.nn.Linear(2 * WIDE, config.hidden_size)}
        )
        self.model.image_newline = torch.nn.Parameter(torch.zeros(config.hidden_size))
        self.model.view_seperator = torch.nn.Parameter(torch.zeros(config.hidden_size))

    def forward(
        self,
        input_ids: torch.Tensor,
        wholes: torch.Tensor | None = None,
        tiles: torch.Tensor | None = None,
        grids: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """``input_ids`` [1, n]; wholes [images, 3, WHOLE, WHOLE], tiles [of all, 3, TILE, TILE],
        grids [images, 2]: columns and rows of an image's tiles, zeros if it is not cut."""
        states = self.model.embed_tokens(input_ids)
        if wholes is not None and tiles is not None and grids is not None:
            cut = tiles.split(grids.prod(-1).tolist())
            images = zip(wholes, cut, grids.tolist(), strict=True)
            seen = torch.cat([self._see(*image) for image in images])
            marked = input_ids[0] == self.config.image_token_id
            states = states.index_copy(1, marked.nonzero()[: len(seen), 0], seen[None])
        return super().forward(inputs_embeds=states, use_cache=False)

    def _see(self, whole: torch.Tensor, tiles: torch.Tensor, grid: list[int]) -> torch.Tensor:
        """An image's tiles, line by line through all of them, the whole, and what ends it."""
        lines = self._lines(self._encode(whole[None]))
        if len(tiles):
            columns, rows = grid
            by_place = self._encode(tiles).unflatten(0, (rows, columns)).transpose(1, 2)
            lines = torch.cat([self._lines(by_place.flatten(2, 3)), lines])
        return torch.cat([lines, self.model.view_seperator[None]])

    def _lines(self, grid: torch.Tensor) -> torch.Tensor:
        """``grid`` [parts, lines, tokens, hidden]; each line with its end."""
        ends = self.model.image_newline.expand(*grid.shape[:2], 1, -1)
        return torch.cat([grid, ends], 2).flatten(0, 2)

    def _encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, 3, side, side]; states of tokens [views, lines, tokens, hidden]."""
        coarse = self.model.sam_model(pixels)
        side = coarse.shape[-1]
        patches = coarse.flatten(2).transpose(1, 2)
        clip = self.model.vision_model
        begin = clip.embeddings.class_embedding.expand(len(patches), 1, -1)
        first, grid = clip.embeddings.position_embedding.weight.tensor_split([1])
        known = round(len(grid) ** 0.5)
        grid = _resized(grid.unflatten(0, (known, known))[None], side)
        places = torch.cat([first, grid[0].flatten(0, 1)])
        x = clip.pre_layrnorm(torch.cat([begin, patches], 1) + places)
        x = clip.encoder(inputs_embeds=x).last_hidden_state[:, 1:]
        made = self.model.projector["layers"](torch.cat([x, patches], -1))
        return made.unflatten(1, (side, side))


class Sam(SamVisionEncoder):
    """SAM's for images of any size, and what makes its grid four times as coarse."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        between, fewer = config.output_channels, {"stride": 2, "padding": 1, "bias": False}
        self.net_2 = torch.nn.Conv2d(between, 2 * between, 3, **fewer)
        self.net_3 = torch.nn.Conv2d(2 * between, WIDE, 3, **fewer)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """``pixels`` [views, 3, side, side]; [views, WIDE, side / TOKEN, side / TOKEN]."""
        x = self.patch_embed.projection(pixels).permute(0, 2, 3, 1)
        x = x + _resized(self.pos_embed, x.shape[1])
        for layer in self.layers:
            x = layer(x)
        return self.net_3(self.net_2(self.neck(x)))


def _resized(places: torch.Tensor, side: int) -> torch.Tensor:
    """``places`` [1, known, known, size] of a grid of ``side`` by side."""
    if places.shape[1] == side:
        return places
    grid = places.permute(0, 3, 1, 2).float()
    grid = interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
    return grid.permute(0, 2, 3, 1).to(places.dtype)


def marked(tokenizer: Any, text: str, tokens: list[int]) -> dict[str, Any]:
    """What a model is given for a text with a mark for each image, of so many tokens."""
    begin, *rest = text.split(MARK)
    parts = zip(tokens, rest, strict=True)
    text = begin + "".join(MARK * count + after for count, after in parts)
    return {"input_ids": tokenizer(text, return_tensors="pt").input_ids}


@dataclass(frozen=True)
class Processor:
    tokenizer: Any

    def __call__(self, text: str, images: Any = (), **_: Any) -> dict[str, Any]:
        """A text with as many marks as its images have tokens, and these."""
        grids = [_grid(*image.size) for image in images]
        made = marked(self.tokenizer, text, [_tokens(*grid) for grid in grids])
        if not images:
            return made
        tiles = [
            tile for image, grid in zip(images, grids, strict=True) for tile in _tiles(image, *grid)
        ]
        return {
            **made,
            "wholes": torch.stack([_whole(image) for image in images]),
            "tiles": torch.stack(tiles) if tiles else torch.zeros(0, 3, TILE, TILE),
            "grids": torch.tensor(grids),
        }


def _grid(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of an image's tiles."""
    if max(width, height) <= TILE:
        return 0, 0
    columns, rows = get_optimal_tiled_canvas((height, width), (TILE, TILE), *TILES)
    return columns, rows


def _tokens(columns: int, rows: int) -> int:
    """With ends of lines, and of the image."""
    whole, tile = WHOLE // TOKEN, TILE // TOKEN
    return whole * (whole + 1) + rows * tile * (columns * tile + (columns > 0)) + 1


def _whole(image: Any) -> torch.Tensor:
    from PIL import ImageOps

    return pixels_of(ImageOps.pad(image, (WHOLE, WHOLE), color=(GREY,) * 3))


def _tiles(image: Any, columns: int, rows: int) -> list[torch.Tensor]:
    if not columns:
        return []
    pixels = pixels_of(image.resize((columns * TILE, rows * TILE)))
    return [tile for line in pixels.split(TILE, 1) for tile in line.split(TILE, 2)]


def pixels_of(image: Any) -> torch.Tensor:
    import numpy as np

    return torch.from_numpy(np.asarray(image) / 127.5 - 1).float().permute(2, 0, 1)


def processor(folder: Path) -> Any:
    _make_host_small()
    return Processor(write_tokenizer(folder, [MARK]))


def _make_host_small() -> None:
    """In this process and those forked from it, it builds encoders and cuts images of the sizes
    above: its own are no matter of config.json, and take minutes."""
    from vllm.model_executor.models import deepencoder, deepseek_ocr

    def sam() -> Any:
        return deepencoder._build_sam(*SAM.values())

    def clip(**sizes: Any) -> Any:
        return CLIPVisionConfig(**{**sizes, "num_hidden_layers": CLIP["num_hidden_layers"]})

    deepseek_ocr.build_sam_vit_b, deepseek_ocr.CLIPVisionConfig = sam, clip
    deepseek_ocr.BASE_SIZE, deepseek_ocr.IMAGE_SIZE = WHOLE, TILE


def published(config: dict[str, Any]) -> dict[str, Any]:
    return as_published(config, 2 * WIDE, WHOLE)


def as_published(text: dict[str, Any], wide: int, whole: int) -> dict[str, Any]:
    """text: as ``transformers`` has it; wide: what encoders hand on; whole: pixels of an image's
    side.  Checkpoints have the encoders' other sizes, too, which the host does not read."""
    rope = {**text["rope_parameters"]}
    rope.pop("partial_rotary_factor", None)
    different = {
        "architectures": ["DeepseekV2ForCausalLM"],
        "first_k_dense_replace": 1,
        "kv_lora_rank": None,
        "model_type": "deepseek_v2",
        "n_group": 1,
        "norm_topk_prob": False,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "rope_parameters": rope,
        "topk_group": 1,
        "topk_method": "greedy",
        "use_mla": False,
        "v_head_dim": 0,
    }
    return {
        "model_type": "deepseek_vl_v2",
        "candidate_resolutions": [[whole, whole]],
        "global_view_pos": "head",
        "language_config": {**text, **different},
        "projector_config": {
            "model_type": "mlp_projector",
            "input_dim": wide,
            "n_embed": text["hidden_size"],
            "projector_type": "linear",
        },
        "tile_tag": "2D",
        "vision_config": {"image_size": whole, "model_type": "vision"},
    }

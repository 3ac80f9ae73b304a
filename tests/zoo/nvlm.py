"""NVLM-D: InternVL, but its tiles are named, and what is between encoder and text is wider and has
no biases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import InternVLForConditionalGeneration
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from tests.zoo.processors import SIDE
from tests.zoo.renamed_image_specs import INTERN_NAMES, INTERN_VIT
from tests.zoo.renamed_processors import IMAGENET, write_config_code
from tests.zoo.tokens import write_tokenizer

MARK, SEEN = "<image>\n", "<|vision_pad|>"
TOKENS = 4  # of a tile
MODEL_TYPE = "NVLM_D"
# Published encoders have seven heads more, all zeros, so that eight ranks can share them.
SIZE, HEADS = INTERN_VIT["hidden_size"], INTERN_VIT["num_attention_heads"]
WIDE = SIZE // HEADS * (HEADS + 7)
PADDED = ((r"attn\.(qkv|[qk]_norm)", 0, WIDE), (r"attn\.proj\.weight", 1, WIDE))
# transformers adds a level to the names of a class that is not its own.
NAMES = ((r"^(model\.language_model\.)model\.", r"\1"), *INTERN_NAMES)


class NVLMForConditionalGeneration(InternVLForConditionalGeneration):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        projector, text = self.model.multi_modal_projector, config.text_config
        size, wide = text.hidden_size, text.intermediate_size
        projector.linear_1 = torch.nn.Linear(projector.linear_1.in_features, wide, bias=False)
        projector.linear_2 = torch.nn.Linear(wide, size, bias=False)


@dataclass(frozen=True)
class Processor:
    tokenizer: Any
    cut: Any

    def __call__(self, text: str, images: Any = (), **_: Any) -> dict[str, Any]:
        """A text in which each tile's name is before its tokens, and the pixels of the tiles."""
        made: dict[str, Any] = {}
        counts: list[int] = []
        if images:
            tiles = self.cut(list(images), return_tensors="pt")
            made["pixel_values"] = tiles.pixel_values
            counts = [int(count) for count in tiles.num_patches]
        begin, *rest = text.split(MARK)
        parts = zip(counts, rest, strict=True)
        text = begin + "".join(_named(count) + after for count, after in parts)
        return {**self.tokenizer(text, return_tensors="pt"), **made}


def _named(tiles: int) -> str:
    """Of an image with so many, the last of which is a small picture of the whole."""
    names = [*(f"<tile_{n}>" for n in range(1, tiles)), "<tile_global_thumbnail>"]
    return "<Image>" + "".join(name + TOKENS * SEEN for name in names) + "</Image>\n"


def processor(folder: Path) -> Any:
    write_config_code(folder, MODEL_TYPE)
    tile = {"height": SIDE, "width": SIDE}
    cut = GotOcr2ImageProcessorPil(size=tile, crop_to_patches=True, max_patches=4, **IMAGENET)
    return Processor(write_tokenizer(folder, [SEEN]), cut)

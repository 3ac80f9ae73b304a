"""LLaVA-OneVision 2's processor: images in whole patches, each with its place."""

from typing import Any

import torch
from transformers import BatchFeature

MARK = "<|image_pad|>"


class LlavaOnevision2Processor:
    def __init__(
        self, image_processor: Any, tokenizer: Any, video_processor: Any = None, **_: Any
    ) -> None:
        self.image_processor, self.tokenizer = image_processor, tokenizer

    def __call__(self, text: Any = None, images: Any = None, **_: Any) -> BatchFeature:
        """A text whose marks are repeated; pixel_values [patches, numbers], those of a token one
        after the other, patch_positions [patches, 3] their times, lines and columns."""
        text = text if isinstance(text, str) else text[0]
        made: dict[str, Any] = {}
        if images:
            cut = self.image_processor(images, return_tensors="pt")
            grids = cut.image_grid_thw
            made = {"pixel_values": cut.pixel_values, "image_grid_thw": grids}
            made["patch_positions"] = torch.cat([_places(*grid) for grid in grids.tolist()])
            marks = [MARK * (count // 4) for count in grids.prod(-1).tolist()]
            parts = text.split(MARK)
            text = "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=True))
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})


def _places(time: int, lines: int, columns: int) -> torch.Tensor:
    grid = torch.stack(torch.meshgrid(*map(torch.arange, (time, lines, columns)), indexing="ij"))
    blocks = grid.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).transpose(3, 4)
    return blocks.flatten(1).T

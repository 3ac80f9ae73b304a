"""Kimi-VL's processor: images in whole patches, as Kimi K2.5 cuts them, under its own names."""

from types import SimpleNamespace
from typing import Any

from transformers import AutoTokenizer, BatchFeature, Kimi_K25ImageProcessor
from transformers.processing_utils import ProcessorMixin

PATCH, MERGED, PATCHES = 14, 2, 100


class KimiVLProcessor(ProcessorMixin):
    image_token = "<|media_pad|>"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.cut = Kimi_K25ImageProcessor(max_patches=PATCHES)
        self.chat_template = None
        # What the host reads.
        self.image_processor = SimpleNamespace(
            patch_size=PATCH, merge_kernel_size=(MERGED, MERGED), in_token_limit=PATCHES
        )

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, text: Any = None, images: Any = None, **_: Any) -> BatchFeature:
        """A text whose tokens of images are repeated, and the patches of the images."""
        text = text if isinstance(text, str) else text[0]
        made: dict[str, Any] = {}
        if images:
            cut = self.cut(images, return_tensors="pt")
            made["pixel_values"] = cut.pixel_values
            made["image_grid_hws"] = cut.image_grid_thw[:, 1:]
            counts = made["image_grid_hws"].prod(-1) // MERGED**2
            parts = text.split(self.image_token)
            marks = [self.image_token * int(count) for count in counts]
            text = "".join(part + mark for part, mark in zip(parts, [*marks, ""], strict=True))
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})

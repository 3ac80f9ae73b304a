"""The processor of Kanana-V: images in whole patches, cut as Qwen2-VL cuts them."""

from typing import Any

import torch
from transformers import AutoTokenizer, BatchFeature
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil,
    smart_resize,
)
from transformers.processing_utils import ProcessorMixin

__all__ = ["KananaVProcessor", "smart_resize"]  # the host looks for the latter beside the images'
TOKEN, MARK = 28, "<image>"  # pixels of a token's side, two patches of 14
MEDIUM = "<unk>"  # that of an image, behind the one that ends a text


class KananaVImageProcessor:
    min_pixels, max_pixels = 4 * TOKEN**2, 16 * TOKEN**2

    def __init__(self) -> None:
        size = {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels}
        self.cut = Qwen2VLImageProcessorPil(size=size)

    def __call__(self, image: Any) -> dict[str, Any]:
        """pixel_values [patches, numbers], and times, lines and columns of patches and tokens."""
        cut = self.cut([image], return_tensors="pt")
        ((time, lines, columns),) = cut.image_grid_thw.tolist()
        meta = {
            "vision_grid_thw": (time, lines, columns),
            "image_token_thw": (time, lines // 2, columns // 2),
        }
        return {"pixel_values": cut.pixel_values, "image_meta": meta}


class KananaVProcessor(ProcessorMixin):
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.image_processor = KananaVImageProcessor()
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, text: Any = None, images: Any = None, **_: Any) -> BatchFeature:
        text = text if isinstance(text, str) else text[0]
        made: dict[str, Any] = {}
        if images:
            cut = [self.image_processor(image) for image in images]
            made["pixel_values"] = torch.cat([one["pixel_values"] for one in cut])
            grids = [one["image_meta"]["vision_grid_thw"] for one in cut]
            made["vision_grid_thw"] = torch.tensor(grids)
            for _, lines, columns in (one["image_meta"]["image_token_thw"] for one in cut):
                text = text.replace(MARK, MEDIUM * (lines * columns), 1)
        return BatchFeature({**self.tokenizer(text, return_tensors="pt"), **made})

"""The processor of Phi-4 vision: images in as many patches as fill them nearly."""

from typing import Any

import torch
from transformers import AutoTokenizer, BatchFeature
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil
from transformers.processing_utils import ProcessorMixin

MARK, PATCHES = "<image>", 36
IMAGE_TOKEN = 100256  # the number of published checkpoints, which the host knows


class Phi4VProcessor(ProcessorMixin):
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.image_processor = Siglip2ImageProcessorPil(max_num_patches=PATCHES)
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, text: Any = None, images: Any = None, **_: Any) -> BatchFeature:
        """A text with the tokens of its images; pixel_values [images, PATCHES, numbers] filled up,
        pixel_attention_mask [images, PATCHES], spatial_shapes [images, 2]: lines and columns."""
        text = text if isinstance(text, str) else text[0]
        made = dict(self.image_processor(images, return_tensors="pt")) if images else {}
        counts = made["spatial_shapes"].prod(-1).tolist() if images else []
        ids: list[int] = []
        for part, count in zip(text.split(MARK), [*counts, 0], strict=True):
            ids += self.tokenizer(part).input_ids + [IMAGE_TOKEN] * count
        return BatchFeature({**made, "input_ids": torch.tensor([ids])})

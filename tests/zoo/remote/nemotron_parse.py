"""Nemotron Parse's config and its processor: a page in a corner of white, as large as all are."""

from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, BatchFeature, MBartConfig, PretrainedConfig
from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from transformers.processing_utils import ProcessorMixin

SIZE = (64, 128)  # height and width of all pages


class NemotronParseConfig(PretrainedConfig):
    model_type = "nemotron_parse"
    is_encoder_decoder: bool = True
    decoder_start_token_id: int = 2
    encoder: Any = None
    decoder: Any = None
    image_size: Any = SIZE

    def __post_init__(self, **rest: Any) -> None:
        if not isinstance(self.encoder, PretrainedConfig):
            self.encoder = PretrainedConfig(**(self.encoder or {}))
        if not isinstance(self.decoder, PretrainedConfig):
            self.decoder = MBartConfig(**(self.decoder or {}))
        super().__post_init__(**rest)


class NemotronParseProcessor(ProcessorMixin):
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat_template = None

    @classmethod
    def from_pretrained(cls, folder: Any, *_: Any, **__: Any) -> Any:
        return cls(AutoTokenizer.from_pretrained(folder))

    def __call__(self, text: Any = None, images: Any = None, **_: Any) -> BatchFeature:
        made = dict(self.tokenizer(text or "", return_tensors="pt"))
        if images:
            some = images if isinstance(images, list) else [images]
            made["pixel_values"] = torch.stack([_page(image) for image in some])
        return BatchFeature(made)


def _page(image: Any) -> torch.Tensor:
    """[3, height, width]."""
    height, width = SIZE
    scale = min(1, height / image.height, width / image.width)
    image = image.convert("RGB").resize((int(scale * image.width), int(scale * image.height)))
    page = np.full((height, width, 3), 255, np.uint8)
    page[: image.height, : image.width] = np.asarray(image)
    mean, std = (torch.tensor(of)[:, None, None] for of in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    return (torch.from_numpy(page).permute(2, 0, 1) / 255 - mean) / std

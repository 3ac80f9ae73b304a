"""Processors, as in ``processors``, of models that make embeddings of images and texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.gemma_processors import _gemma4
from tests.zoo.processors import FIRST, SIDE, _image_processor, _keep
from tests.zoo.tokens import write_tokenizer

IMAGE_TOKENS = 4  # of ColModernVBERT's images here


def embedding_gemma2(folder: Path) -> Any:
    from transformers import (
        EmbeddingGemma2Processor,
        EmbeddingGemma2VideoProcessor,
        Gemma4AudioFeatureExtractor,
    )

    parts = (Gemma4AudioFeatureExtractor(), _image_processor("Gemma4", max_soft_tokens=70))
    return _gemma4(EmbeddingGemma2Processor, parts, EmbeddingGemma2VideoProcessor(), folder)


@dataclass(frozen=True)
class ImagesFirst:
    """A text's tokens behind those of its images."""

    tokenizer: Any
    images: Any

    def __call__(self, text: str, images: Sequence[Any] = (), **_: Any) -> dict[str, Any]:
        import torch

        ids = [FIRST] * IMAGE_TOKENS * len(images) + self.tokenizer(text).input_ids
        given = {"input_ids": torch.tensor([ids])}
        if images:
            made = self.images([*images], do_image_splitting=False, return_tensors="pt")
            given["pixel_values"] = made.pixel_values
        return given


def colmodernvbert(folder: Path) -> Any:
    side = {"longest_edge": SIDE}
    images = _image_processor("Idefics3", size=side, max_image_size=side)
    return ImagesFirst(write_tokenizer(folder, ["<image>"]), _keep(images, folder))

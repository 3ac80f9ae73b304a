"""Processors, as in ``processors``, of models that read prompts in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.processors import SIDE, _image_processor, _keep
from tests.zoo.tokens import write_tokenizer


@dataclass(frozen=True)
class AskedAboutOne:
    """PaliGemma's, and texts alone as they are."""

    processor: Any

    def __call__(self, text: str, images: Sequence[Any] = (), **options: Any) -> dict[str, Any]:
        import torch

        if images:
            return dict(self.processor(text=text, images=images, **options))
        ids = torch.tensor([self.processor.tokenizer(text).input_ids])
        return {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}


def paligemma(folder: Path) -> Any:
    from transformers import PaliGemmaProcessor

    named = {"image_token": "<image>", "line_token": "\n"}  # the host wants a token for a line
    tokenizer = write_tokenizer(folder, list(named.values()), extra_special_tokens=named)
    images = _image_processor("Siglip", size={"height": SIDE, "width": SIDE})
    images.image_seq_length = (SIDE // 14) ** 2
    return AskedAboutOne(_keep(PaliGemmaProcessor(images, tokenizer), folder))

"""DeepSeek-OCR 2 as ``transformers`` has it, and the host as small."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo.deepseek_ocr import MARK, SAM, as_published
from tests.zoo.processors import FIRST
from tests.zoo.tokens import write_tokenizer

WHOLE = 1024  # pixels of a side: a tile's and this have queries of their own
WIDE = 896  # of what encoders hand on
LAYERS = 2
CONFIG = {
    "text_config": {
        "model_type": "deepseek_ocr2_text",
        "max_position_embeddings": 2048,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_key_value_heads": 6,
    },
    "vision_config": {
        "model_type": "deepseek_ocr2_vision",
        # At the usual 1e-10 all pictures are one.
        "sam_config": {**SAM, "initializer_range": 0.02},
        "encoder_config": {
            "hidden_size": WIDE,
            "intermediate_size": 4864,
            "num_attention_heads": 14,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    },
    "image_token_id": FIRST,
}


@dataclass(frozen=True)
class Processor:
    """``transformers``', which knows no text without an image."""

    processor: Any

    def __call__(self, text: str, images: Any = None, **given: Any) -> dict[str, Any]:
        if not images:
            return dict(self.processor.tokenizer(text, return_tensors="pt"))
        return dict(self.processor(text=text, images=images, **given))


def processor(folder: Path) -> Any:
    from transformers import DeepseekOcr2ImageProcessorPil, DeepseekOcr2Processor

    _make_host_small()
    tokenizer = write_tokenizer(folder, [MARK])
    return Processor(DeepseekOcr2Processor(DeepseekOcr2ImageProcessorPil(), tokenizer))


def _make_host_small() -> None:
    """As for DeepSeek-OCR, but for images, whose sizes its queries are for."""
    from vllm.model_executor.models import deepencoder, deepencoder2, deepseek_ocr2

    own = {
        "depth": SAM["num_hidden_layers"],
        "embed_dim": SAM["hidden_size"],
        "global_attn_indexes": SAM["global_attn_indexes"],
        "num_heads": SAM["num_attention_heads"],
    }

    def sam(**sizes: Any) -> Any:
        return deepencoder.ImageEncoderViT(**{**sizes, **own})

    def decoder() -> Any:
        return deepencoder2.build_qwen2_decoder_as_encoder(decoder_layer=LAYERS)

    deepseek_ocr2.ImageEncoderViT = sam
    deepseek_ocr2.build_qwen2_decoder_as_encoder = decoder


def published(config: dict[str, Any]) -> dict[str, Any]:
    return as_published(config["text_config"], WIDE, WHOLE)

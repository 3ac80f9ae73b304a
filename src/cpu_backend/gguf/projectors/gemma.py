"""Gemma 3: a SigLIP tower over pictures of one size, averages of its patches."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cpu_backend.gguf.architectures.tensors import Tensor, minus_one
from cpu_backend.gguf.projectors.siglip import Siglip

PROJECTOR = "model.multi_modal_projector."
# https://arxiv.org/abs/2503.19786: 4,096 patches become 256 tokens.
POOLED = 4  # patches along a side that become one, where the file does not say


class Gemma3(Siglip):
    """Gemma 3 of 4, 12 and 27 billion weights."""

    kind, texts = "gemma3", ("gemma3",)
    class_name = "Gemma3ForConditionalGeneration"
    model_type, text_type = "gemma3", "gemma3_text"
    tower = "model.vision_tower.vision_model."
    marks: Mapping[str, str] = MappingProxyType(
        {
            "image_token": "<image_soft_token>",
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
        }
    )
    numbered = "_index"
    # The last token of checkpoints, which is none of SentencePiece's, is missing in some files.
    unused: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {"image_token": tuple(f"<unused{number}>" for number in range(98, -1, -1))}
    )

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | {
            "mm.input_projection.weight": Tensor(
                f"{PROJECTOR}mm_input_projection_weight", ("hidden", "text")
            ),
            "mm.soft_emb_norm.weight": Tensor(
                f"{PROJECTOR}mm_soft_emb_norm.weight", ("hidden",), values=minus_one
            ),
        }

    def more(self) -> dict[str, Any]:
        return {"mm_tokens_per_image": self.averages()}

    def averages(self) -> int:
        """Of the patches of a picture, which are its tokens."""
        return self.tokens(self.size("vision.projector.scale_factor", POOLED))

    def processor(self) -> dict[str, Any]:
        side = self.size("vision.image_size")
        size = {"height": side, "width": side}
        return {
            "processor_class": "Gemma3Processor",
            "image_seq_length": self.averages(),
            "image_processor": {
                **self.normalized(),
                "image_processor_type": "Gemma3ImageProcessor",
                "resample": 2,
                "size": size,
            },
        }


KNOWN = (Gemma3,)

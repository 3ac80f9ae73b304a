"""SPLADE finds the last layer of its head where published checkpoints have it.

What: ``BertSpladeSparseEmbeddingModel.load_weights`` takes the embeddings for its matrix and
    ``cls.predictions.bias`` for its bias where the checkpoint has no other.
Why: safetensors hold tied weights once, so the host ends with "weights were not initialized"; a
    quantized model it would start with whatever lay in memory.
Since: 0.32
Until: the host ties them, as its ``BertForMaskedLM`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from cpu_backend.host.seam import patch

DECODER = "cls.predictions.decoder"
# By the ends of their names.
TIED = {
    "embeddings.word_embeddings.weight": f"{DECODER}.weight",
    "cls.predictions.bias": f"{DECODER}.bias",
}


@patch(
    "vllm.model_executor.models.bert",
    "BertSpladeSparseEmbeddingModel.load_weights(self, weights)",
)
def tie(original: Any) -> Any:
    """The decoder's weights come last."""

    def load_weights(self: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        return original(self, with_decoder(weights))

    return load_weights


def with_decoder(weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """``weights``, and those of the decoder that are not among them."""
    missing: dict[str, Any] = dict.fromkeys(TIED.values())
    for name, weight in weights:
        for end, tied in TIED.items():
            if name.endswith(end) and tied in missing:
                missing[tied] = weight
            if name.endswith(tied):
                missing.pop(tied, None)
        yield name, weight
    yield from ((name, weight) for name, weight in missing.items() if weight is not None)

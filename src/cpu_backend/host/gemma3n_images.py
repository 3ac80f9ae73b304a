"""Gemma 3n embeds the marks of images and sounds, and makes encoders in the engine's dtype.

What: ``embed_input_ids`` takes the tokens that are of images and sounds alone, among them the marks
    of their ends, from their own embeddings; both encoders get the engine's dtype.
Why: the host takes them from the text's embedding, where a checkpoint has what it never trained;
    and it makes the encoders in the checkpoint's dtype, after which nothing fits.
Since: 0.32
Until: it embeds by the number of a token, and makes them in its own dtype.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

MODULE = "vllm.model_executor.models.gemma3n_mm"


@patch(MODULE, "Gemma3nForConditionalGeneration.__init__(self, *, vllm_config, prefix)")
def make_encoders(original: Any) -> Any:
    """In the dtype of what follows them."""

    def __init__(self: Any, *, vllm_config: Any, prefix: str = "") -> None:  # noqa: N807
        original(self, vllm_config=vllm_config, prefix=prefix)
        for encoder in (self.vision_tower, self.audio_tower):
            encoder.to(dtype=vllm_config.model_config.dtype)

    return __init__


@patch(
    MODULE,
    "Gemma3nForConditionalGeneration.embed_input_ids(self, input_ids, multimodal_embeddings, *, "
    "is_multimodal)",
)
def embed_marks(original: Any) -> Any:
    """What is no image nor sound, but has a number of theirs."""
    from vllm.model_executor.models.utils import StageMissingLayer

    def embed_input_ids(
        self: Any,
        input_ids: Any,
        multimodal_embeddings: Any = None,
        *,
        is_multimodal: Any = None,
    ) -> Any:
        embedded = original(self, input_ids, multimodal_embeddings, is_multimodal=is_multimodal)
        marks = input_ids >= self.config.vision_config.vocab_offset
        if is_multimodal is not None:
            marks &= ~is_multimodal
        of_sounds = input_ids >= self.config.audio_config.vocab_offset
        for embed, of_kind in ((self.embed_vision, ~of_sounds), (self.embed_audio, of_sounds)):
            own = marks & of_kind
            # Where the server takes none of a kind, the host has not loaded how to embed it.
            if own.any() and not isinstance(embed, StageMissingLayer):
                embedded[own] = embed(input_ids=input_ids[own]).to(embedded.dtype)
        return embedded

    return embed_input_ids

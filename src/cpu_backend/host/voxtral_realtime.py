"""Voxtral Realtime goes on where one of several requests is behind the end of its sound.

What: ``VoxtralRealtimeGeneration.embed_input_ids`` has zeros for tokens that hear nothing, as the
    host has them where no token of a step hears anything.
Why: the host takes what is heard for that of all tokens, in their order; a request that asks for
    more tokens than its sound has ends the engine with "The size of tensor a must match the size of
    tensor b" as soon as others are computed beside it.
Since: 0.32
Until: it puts what is heard where it belongs.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.voxtral_realtime",
    "VoxtralRealtimeGeneration.embed_input_ids(self, input_ids, multimodal_embeddings, ...)",
    when=When.COMPUTING,
)
def put_in_place(original: Any) -> Any:
    """[tokens, states of a token, one after the other]."""

    def embed_input_ids(
        self: Any, input_ids: Any, multimodal_embeddings: Any = None, *, is_multimodal: Any = None
    ) -> Any:
        heard = original(self, input_ids, multimodal_embeddings, is_multimodal=is_multimodal)
        if is_multimodal is None or len(heard) == len(input_ids):
            return heard
        embedded = heard.new_zeros(len(input_ids), heard.shape[1])
        embedded[is_multimodal] = heard
        return embedded

    return embed_input_ids

"""Ultravox hears each sound as if it were alone.

What: sounds that are asked about at once go through encoder and projector one after the other, each
    of its pieces as long as it is.
Why: the host fills shorter pieces up to the longest one; what the encoder makes of that reaches the
    last frames of a piece, and the token that is made of them, so that an answer depends on which
    requests were there.
Since: 0.30
Until: it leaves out what is filled up.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.ultravox",
    "UltravoxModel._audio_features_to_embeddings(self, input_features, audio_lens, ...)",
    when=When.COMPUTING,
)
def one_by_one(original: Any) -> Any:
    """Those of [pieces, bands, frames] as [pieces, tokens, hidden], zeros behind a piece's end."""

    def embeddings(
        self: Any, features: torch.Tensor, frames: torch.Tensor, tokens: torch.Tensor
    ) -> Any:
        if self.pad_audio_to_max_context:  # of adapters in the encoder, which count on it
            return original(self, features, frames, tokens)
        made = [
            original(self, piece[None, :, :length], frames[i : i + 1], tokens[i : i + 1])[0]
            for i, (piece, length) in enumerate(zip(features, frames.tolist(), strict=True))
        ]
        return torch.nn.utils.rnn.pad_sequence(made, batch_first=True)

    return embeddings

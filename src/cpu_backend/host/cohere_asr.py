"""Cohere Transcribe computes positions in the model's dtype, and a sound alone.

What: ``CohereASRModel.load_weights`` gets the encoder's ``pos_bias`` in the model's dtype, and
    ``get_encoder_outputs`` encodes one sound after the other, without what pads it.
Why: the host leaves the bias in the checkpoint's dtype, so a request ends with "expected m1 and m2
    to have the same dtype" where that is wider than the one asked for; padded to the longest sound
    of a step, a sound's states, and with them its transcript, depend on the others.
Since: 0.32
Until: the host converts the bias as all other weights; a sound's states do not depend on others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cpu_backend.host.seam import patch

MODULE = "vllm.model_executor.models.cohere_asr"


@patch(MODULE, "CohereASRModel.load_weights(self, weights)")
def convert(original: Any) -> Any:
    """Those by which positions are weighed alone."""

    def load_weights(self: Any, weights: Iterable[tuple[str, Any]]) -> Any:
        dtype = next(self.parameters()).dtype
        converted = (
            (name, weight.to(dtype) if "pos_bias" in name else weight) for name, weight in weights
        )
        return original(self, converted)

    return load_weights


@patch(MODULE, "CohereASRModel.get_encoder_outputs(self, input_features, seq_lens)")
def encode_alone(original: Any) -> Any:
    """input_features: [sounds, bands, frames]; seq_lens: the frames of each."""

    def get_encoder_outputs(self: Any, input_features: Any, seq_lens: Any) -> Any:
        if not isinstance(input_features, torch.Tensor):
            return original(self, input_features, seq_lens)
        states: list[torch.Tensor] = []
        for sound, length in zip(input_features, seq_lens, strict=True):
            states += original(self, sound[None, :, : int(length)], length[None])
        return states

    return get_encoder_outputs

"""Voxtral Realtime as ``transformers`` has it, given a whole sound."""

from __future__ import annotations

from typing import Any

import torch
from transformers import VoxtralRealtimeForConditionalGeneration


class VoxtralRealtimeGeneration(VoxtralRealtimeForConditionalGeneration):
    def forward(
        self, input_ids: torch.Tensor, input_features: torch.Tensor | None = None, **given: Any
    ) -> Any:
        """``input_ids`` [1, n]; input_features [1, bands, frames], those of n tokens or more."""
        if input_features is not None:
            frames = self.config.audio_length_per_tok * input_ids.shape[1]
            given["input_features"] = input_features[..., :frames]
        return super().forward(input_ids=input_ids, use_cache=False, **given)

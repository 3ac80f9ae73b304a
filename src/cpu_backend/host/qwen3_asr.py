"""Qwen3-ASR hears a sound of less than a second as it does beside longer ones.

What: where all sounds of a call are shorter than a piece of the encoder's, a silent one of a whole
    piece is encoded with them.
Why: the encoder's convolutions see what fills a piece up.  transformers fills up every piece; the
    host fills up to the longest of a call, so that the end of a short sound depended on the others.
Since: 0.30
Until: it fills up every piece.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.models.qwen3_asr",
    "Qwen3ASRForConditionalGeneration._process_audio_input(self, audio_input)",
    when=When.COMPUTING,
)
def fill_pieces(original: Any) -> Any:
    """Of each sound its states [tokens, hidden]."""

    def process(self: Any, audio_input: Any) -> Any:
        features, lengths = audio_input["input_features"], audio_input["audio_feature_lengths"]
        piece = 2 * self.audio_tower.n_window
        if int(lengths.max()) >= piece:
            return original(self, audio_input)
        silence = features.new_zeros(len(features), piece)
        filled = {
            "input_features": torch.cat([features, silence], 1),
            "audio_feature_lengths": torch.cat([lengths, lengths.new_tensor([piece])]),
        }
        return original(self, filled)[:-1]

    return process

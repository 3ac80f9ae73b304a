"""Qwen2.5-Omni finds the sound of a video (``use_audio_in_video``) where it is.

What: ``_compute_interleaved_positions`` counts the token that begins the sound, and the two that
    end sound and video, which have the position before and the one behind all others.
Why: the host leaves them out, so every token gets the position of the next one, images those of
    sounds among them; Qwen3-Omni's class has them.
Since: 0.30
Until: the host counts them.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.models.qwen2_5_omni_thinker",
    "Qwen2_5OmniThinkerForConditionalGeneration._compute_interleaved_positions"
    "(self, start_idx, data)",
)
def count_marks(original: Any) -> Any:
    """Positions [3, tokens], and how many tokens."""

    def _compute_interleaved_positions(self: Any, start_idx: int, data: Any) -> Any:
        import numpy as np

        places, tokens = original(self, start_idx, data)
        begin, end = np.full((3, 1), start_idx - 1), np.full((3, 2), places.max() + 1)
        return np.concatenate([begin, places, end], axis=1), tokens + 3

    return _compute_interleaved_positions

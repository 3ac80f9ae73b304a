"""YaRN of positions in several directions (Qwen2.5-VL) begins where it says.

What: frequencies are made of the length that the model was trained for.
Why: the host makes a table of more positions than that, four times as many for some models, and
    takes the length of the table.
Since: 0.30
Until: it keeps the two apart.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import patch

MROPE = "vllm.model_executor.layers.rotary_embedding.mrope"


@patch(
    MROPE,
    "MRotaryEmbedding.__init__(self, head_size, rotary_dim, max_position_embeddings, ...)",
)
def keep_length(original: Any) -> Any:
    """With YaRN the host gives the length that the model was trained for."""

    def __init__(  # noqa: N807
        self: Any, head_size: int, rotary_dim: int, max_position_embeddings: int, *a: Any, **k: Any
    ) -> None:
        self.trained_positions = max_position_embeddings
        original(self, head_size, rotary_dim, max_position_embeddings, *a, **k)

    return __init__


@patch(MROPE, "MRotaryEmbedding._compute_inv_freq(self, base)")
def of_that_length(original: Any) -> Any:
    """The host's, with that length in the place of the table's."""

    def compute(self: Any, base: float) -> torch.Tensor:
        table, self.max_position_embeddings = self.max_position_embeddings, self.trained_positions
        try:
            frequencies: torch.Tensor = original(self, base)
        finally:
            self.max_position_embeddings = table
        return frequencies

    return compute

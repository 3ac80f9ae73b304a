"""Ernie 4.5 VL turns its heads by positions on CPUs too.

What: its ``forward_native`` takes the offsets of positions that its base class hands on.
Why: the base class has them on CPUs alone, and the call ended with a TypeError; they are None.
Since: 0.32
Until: it takes as many arguments as its base class.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.layers.rotary_embedding.ernie45_vl_rope",
    "Ernie4_5_VLRotaryEmbedding.forward_native(self, positions, query, key)",
)
def take_offsets(original: Any) -> Any:
    """None of them."""

    def forward_native(
        self: Any, positions: Any, query: Any, key: Any = None, offsets: Any = None
    ) -> Any:
        assert offsets is None
        return original(self, positions, query, key)

    return forward_native

"""MiniMax M2's norms of queries and keys over several ranks leave no tensor of the host's op.

What: ``MiniMaxText01RMSNormTP.forward_qkv`` is two norms, each over the channels of all ranks.
Why: the host has one op of its own for both, which no recorded step can hold, and which computes
    this on CPUs.
Since: 0.30
Until: it is called where it has a kernel.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch


@patch(
    "vllm.model_executor.layers.minimax_rms_norm.rms_norm_tp",
    "MiniMaxText01RMSNormTP.forward_qkv(q_norm, k_norm, qkv, q_size, kv_size)",
)
def norm_each(original: Any) -> Any:
    """With one rank as the host does."""

    def forward_qkv(q_norm: Any, k_norm: Any, qkv: Any, q_size: int, kv_size: int) -> Any:
        if q_norm.tp_world == 1:
            return original(q_norm, k_norm, qkv, q_size, kv_size)
        q, k, v = qkv.split([q_size, kv_size, kv_size], dim=-1)
        return q_norm(q), k_norm(k), v

    return forward_qkv

"""The indexer of sparse attention computes in the model's dtype.

What: the layer that the host's DeepSeek V3.2 and GLM-5 make is attention/sparse.py's.
Why: the host's rounds queries and keys to fp8, and has kernels for the GPUs alone; on CPUs for
    DeepSeek V4, with a cache of another order.
Since: 0.32
Until: a backend may say how its indexer computes.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change


@change(
    "vllm.model_executor.models.deepseek_v2",
    "Indexer.forward(self, hidden_states, qr, positions, rotary_emb)",
    "DeepseekV32IndexerCache",
    when=When.COMPUTING,
)
def choose_in_own_dtype(module: Any) -> None:
    """For the layers that the host will make."""
    from cpu_backend.attention.sparse import TokenIndexer

    module.Indexer = TokenIndexer

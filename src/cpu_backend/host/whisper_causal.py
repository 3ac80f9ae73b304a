"""Voxtral Realtime's encoder keeps its keys and values in this backend's pages.

What: ``CPUAttentionBackend``, in the module of such encoders alone, is this backend's attention.
Why: an encoder's layer has several states for each token, and what the host has for that names the
    backends that it may be put on top of; this one, which is in the place of the host's own for
    CPUs, has what it needs, and is not named.
Since: 0.32
Until: it takes any backend.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change


@change(
    "vllm.model_executor.models.whisper_causal",
    "create_whisper_attention_backend_with_block_pooling(underlying_attn_backend, "
    "block_pool_size, ...)",
    when=When.COMPUTING,
)
def name_this_backend(whisper_causal: Any) -> None:
    from cpu_backend.attention.backend import CpuBackendAttention

    whisper_causal.CPUAttentionBackend = CpuBackendAttention

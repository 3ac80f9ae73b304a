"""Layers with a recurrent state take this backend's metadata: one kind for whole steps.

What: attention/states.py in the host's registry of backends for layers with states.
Why: the host's builder tells decodes from prompts for two kernels, and plans chunks for Triton.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change

KINDS = ("GDN_ATTN", "MAMBA1", "MAMBA2", "SHORT_CONV")
BACKEND = "cpu_backend.attention.states.CpuBackendStates"


@change(
    "vllm.v1.attention.backends.registry",
    "register_backend(backend, class_path, is_mamba)",
    "MambaAttentionBackendEnum",
    when=When.COMPUTING,
)
def register(registry: Any) -> None:
    """In place of the host's own."""
    for kind in KINDS:
        registry.register_backend(registry.MambaAttentionBackendEnum[kind], BACKEND, is_mamba=True)

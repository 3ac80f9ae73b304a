"""Values of another size than their keys are attended to by this backend's kernel.

What: the registry's TRITON_ATTN_DIFFKV, which MiMo V2 asks for by name, is attention/backend.py's.
Why: the model chooses between two kernels for GPUs itself; the platform is not asked.
Since: 0.32
Until: the platform chooses for such layers too.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change

REGISTRY = "vllm.v1.attention.backends.registry"
OURS = "cpu_backend.attention.backend.CpuBackendAttention"


@change(REGISTRY, "AttentionBackendEnum", "register_backend", when=When.COMPUTING)
def take_values(module: Any) -> None:
    """As the host lets others override its own."""
    module.register_backend(module.AttentionBackendEnum.TRITON_ATTN_DIFFKV, OURS)

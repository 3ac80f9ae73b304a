"""Mixtures of experts without a gate (Nemotron 3) may run on CPUs.

What: the description of such a layer is made although the device is a CPU.
Why: the host has kernels for GPUs alone; this backend's op needs no gate.
Since: 0.30
Until: the host leaves it to the kernel's class, as it asks whether that needs a gate anyway.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.fused_moe.config",
    "FusedMoEConfig.__post_init__(self)",
    when=When.COMPUTING,
)
def allow(original: Any) -> Any:
    """The refusal is the last that the original does."""

    def __post_init__(self: Any) -> None:  # noqa: N807
        try:
            original(self)
        except NotImplementedError:
            if self.activation.is_gated:
                raise

    return __post_init__

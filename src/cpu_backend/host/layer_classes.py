"""The host's layers that this backend computes: one visible list.

What: classes of layers/ in the place of the host's, by its registry.
Why: its own forwards for CPUs are torch code or need other instruction sets.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change


@change("vllm.model_executor.custom_op", "CustomOp.register_oot(cls, ...)", when=When.COMPUTING)
def register(module: Any) -> None:
    """Before a model is built."""
    from cpu_backend.layers import activation, norm

    for name, cls in (
        ("RMSNorm", norm.CpuRMSNorm),
        ("GemmaRMSNorm", norm.CpuGemmaRMSNorm),
        ("LayerNorm", norm.CpuHostLayerNorm),
        ("RMSNormGated", norm.CpuRMSNormGated),
        ("FusedRMSNormGated", norm.CpuFusedRMSNormGated),
        ("Mixer2RMSNormGated", norm.CpuMixer2RMSNormGated),
        ("SiluAndMul", activation.CpuSiluAndMul),
        ("GeluAndMul", activation.CpuGeluAndMul),
        ("GeluAndMulSparse", activation.CpuGeluAndMulSparse),
        ("NewGELU", activation.CpuNewGELU),
        ("FastGELU", activation.CpuFastGELU),
        ("QuickGELU", activation.CpuQuickGELU),
        ("ReLUSquaredActivation", activation.CpuReLUSquared),
        ("XIELU", activation.CpuXIELU),
    ):
        module.CustomOp.register_oot(cls, name=name)

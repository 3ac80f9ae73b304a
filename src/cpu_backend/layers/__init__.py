"""The layers of the host that this backend replaces: one visible list."""

from __future__ import annotations

import functools


@functools.cache
def register_all() -> None:
    """Swap the classes below; runs in the worker before a model is built."""
    from vllm.model_executor.custom_op import CustomOp

    from cpu_backend import compat
    from cpu_backend.layers import activation, norm, quantization, whole_weights
    from cpu_backend.layers.quantization import at_load, gguf

    at_load.register()
    gguf.register()
    compat.pack_linear_weights()
    compat.pack_experts()
    compat.map_parameters()
    whole_weights.require()
    compat.choose_top_tokens_without_sort()
    quantization.register_kernels()
    for name, cls in (
        ("RMSNorm", norm.CpuRMSNorm),
        ("SiluAndMul", activation.CpuSiluAndMul),
        ("GeluAndMul", activation.CpuGeluAndMul),
        ("GeluAndMulSparse", activation.CpuGeluAndMulSparse),
        ("NewGELU", activation.CpuNewGELU),
        ("FastGELU", activation.CpuFastGELU),
        ("QuickGELU", activation.CpuQuickGELU),
        ("XIELU", activation.CpuXIELU),
    ):
        CustomOp.register_oot(cls, name=name)

"""The host's registries of linear kernels for CPUs; its own entries stay behind ours.

What: each scheme's list begins with the class of layers/quantization/; NVFP4 weights that meet
activations as they are have no list but a kernel by name, in whose place ours comes.
Why: ``register_linear_kernel`` appends, and the host takes the first that says yes.
Since: 0.32
Until: never: this is the host's way, but for the order.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import When, change

REGISTRIES = (
    "_POSSIBLE_INT8_KERNELS",
    "_POSSIBLE_KERNELS",
    "_POSSIBLE_FP8_KERNELS",
    "_POSSIBLE_FP8_BLOCK_KERNELS",
    "_POSSIBLE_WFP8A16_KERNELS",
    "_POSSIBLE_MXFP8_KERNELS",
    "_POSSIBLE_MXFP4_KERNELS",
    "_POSSIBLE_NVFP4_KERNELS",
)
NVFP4_WEIGHT_ONLY = "MarlinNvFp4LinearKernel"


@change("vllm.model_executor.kernels.linear", *REGISTRIES, NVFP4_WEIGHT_ONLY, when=When.COMPUTING)
def register(module: Any) -> None:
    """Before a model is built."""
    from vllm.platforms import PlatformEnum

    from cpu_backend.layers.quantization import fp8, int8, weight_only

    kernels = (
        int8.CpuInt8Linear,
        weight_only.CpuWeightOnlyLinear,
        fp8.CpuFp8Linear,
        fp8.CpuFp8Linear,
        fp8.CpuFp8Linear,
        fp8.CpuMxfp8Linear,
        fp8.CpuMxfp4Linear,
        fp8.CpuNvFp4Linear,
    )
    for registry, kernel in zip(REGISTRIES, kernels, strict=True):
        getattr(module, registry).setdefault(PlatformEnum.CPU, []).insert(0, kernel)
    setattr(module, NVFP4_WEIGHT_ONLY, fp8.CpuNvFp4Linear)

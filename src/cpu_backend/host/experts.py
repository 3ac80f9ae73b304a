"""Mixtures of experts, quantized ones too, run on this project's op.

What: the host's choices of kernels for CPUs are one class, its methods get mixins that pack
    (layers/experts.py).
Why: the host picks kernels by the names of instruction sets, and refuses what they lack.
Since: 0.32
Until: a hook of the platform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.host.seam import When, change, patch

ORACLES = "vllm.model_executor.layers.fused_moe.oracle"


def _cpu_experts_first(original: Callable[..., Any]) -> Callable[..., Any]:
    from cpu_backend.layers.experts import CpuExperts

    def backend_to_kernel_cls(backend: Any) -> list[type]:
        return [CpuExperts] if "CPU" in backend.name else list(original(backend))

    return backend_to_kernel_cls


for _oracle in ("fp8", "int8", "int_wna16", "mxfp4", "unquantized", "w4a8_int8"):
    patch(f"{ORACLES}.{_oracle}", "backend_to_kernel_cls(backend)", when=When.COMPUTING)(
        _cpu_experts_first
    )


@change(f"{ORACLES}.mxfp8", "backend_to_kernel_cls", "_SUPPORTED_BACKENDS", when=When.COMPUTING)
def take_mxfp8(module: Any) -> None:
    """The host has none for CPUs."""
    from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend

    module._SUPPORTED_BACKENDS = (Fp8MoeBackend.CPU,)
    module.backend_to_kernel_cls = _cpu_experts_first(module.backend_to_kernel_cls)


@patch(f"{ORACLES}.nvfp4", "backend_to_kernel_cls(backend)", when=When.COMPUTING)
def take_nvfp4(original: Callable[..., Any]) -> Callable[..., Any]:
    """Nor for CPUs here: ours comes in the place of the one that is made for no device."""
    from cpu_backend.layers.experts import CpuExperts

    def backend_to_kernel_cls(backend: Any) -> list[type]:
        return [CpuExperts] if backend.name == "EMULATION" else list(original(backend))

    return backend_to_kernel_cls


@patch(
    "vllm.model_executor.layers.fused_moe.routed_experts",
    "RoutedExperts._get_quant_method(self, ...)",
    when=When.COMPUTING,
)
def choose(original: Any) -> Any:
    """The host's methods, with their mixins; the others are made for GPUs."""
    from cpu_backend.layers import quantization
    from cpu_backend.layers.experts import ACTIVATIONS, ExpertsMethod

    mixins = quantization.experts_methods()
    ours = {host: type(mixin.__name__, (mixin, host), {}) for host, mixin in mixins.items()}

    def get_quant_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"mixtures of experts whose activation is {self.activation.value} are not "
                "supported on the CPU: choose another model."
            )
        method = original(self, *args, **kwargs)
        if isinstance(method, ExpertsMethod):
            return method
        if type(method) not in ours:
            raise ConfigError(
                f"mixtures of experts in the scheme of vLLM's {type(method).__name__} are not "
                "supported on the CPU: choose another checkpoint, or --quantization cpu_int8 or "
                "cpu_int4 for one that is not quantized."
            )
        method.__class__ = ours[type(method)]
        return method

    return get_quant_method

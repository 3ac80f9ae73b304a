"""Quantized checkpoints: which of the host's classes this backend provides, one visible list.

Every scheme's weight is packed at load into the one form of ``csrc/kernels/quant_pack.h`` and the
checkpoint's copy is freed; ``docs/quantization.md`` says what is computed with which integers.
"""

from __future__ import annotations

import functools


@functools.cache
def register_kernels() -> None:
    """The host's registries of linear kernels for CPUs; its own entries stay behind ours.

    Runs in the worker before a model is built.
    """
    from vllm.model_executor.kernels import linear as host
    from vllm.platforms import PlatformEnum

    from cpu_backend.layers.quantization import fp8, int8, weight_only

    # register_linear_kernel() would append, and the host takes the first that says yes.
    for registry, kernel in (
        (host._POSSIBLE_INT8_KERNELS, int8.CpuInt8Linear),
        (host._POSSIBLE_KERNELS, weight_only.CpuWeightOnlyLinear),
        (host._POSSIBLE_FP8_KERNELS, fp8.CpuFp8Linear),
        (host._POSSIBLE_FP8_BLOCK_KERNELS, fp8.CpuFp8Linear),
        (host._POSSIBLE_WFP8A16_KERNELS, fp8.CpuFp8Linear),
        (host._POSSIBLE_MXFP8_KERNELS, fp8.CpuMxfp8Linear),
        (host._POSSIBLE_MXFP4_KERNELS, fp8.CpuMxfp4Linear),
    ):
        registry.setdefault(PlatformEnum.CPU, []).insert(0, kernel)


@functools.cache
def register_configs() -> None:
    """The host's readers of checkpoint configurations that refuse what works here.

    Runs when the host has found out that a model is quantized.
    """
    from vllm.model_executor.layers.quantization import register_quantization_config

    from cpu_backend.layers.quantization import awq, gptq

    for config, names in (
        (gptq.CpuGPTQConfig, ("auto_gptq", "gptq", "gptq_marlin")),
        (awq.CpuAWQConfig, ("auto_awq", "awq", "awq_marlin")),
    ):
        for name in names:
            register_quantization_config(name)(config)


def experts_methods() -> dict[type, type]:
    """The host's methods for mixtures of experts, and what reads their tensors here."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )
    from vllm.model_executor.layers.quantization.auto_awq import AutoAWQMoEMethod
    from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQMoEMethod
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
        compressed_tensors_moe_w4a4_mxfp4,
        compressed_tensors_moe_w4a8_int8,
        compressed_tensors_moe_w8a8_fp8,
        compressed_tensors_moe_w8a8_int8,
        compressed_tensors_moe_w8a8_mxfp8,
        compressed_tensors_moe_wna16,
    )
    from vllm.model_executor.layers.quantization.fp8 import Fp8MoEMethod
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod

    from cpu_backend.layers import experts
    from cpu_backend.layers.quantization import awq, fp8, gptq, int8, weight_only

    return {
        UnquantizedFusedMoEMethod: experts.UnquantizedExpertsMethod,
        AutoAWQMoEMethod: awq.AWQExpertsMethod,
        AutoGPTQMoEMethod: gptq.GPTQExpertsMethod,
        compressed_tensors_moe_w4a4_mxfp4.CompressedTensorsW4A4Mxfp4MoEMethod: (
            fp8.Mxfp4ExpertsMethod
        ),
        compressed_tensors_moe_w4a8_int8.CompressedTensorsW4A8Int8MoEMethod: (
            weight_only.W4A8ExpertsMethod
        ),
        compressed_tensors_moe_w8a8_fp8.CompressedTensorsW8A8Fp8MoEMethod: fp8.Fp8ExpertsMethod,
        compressed_tensors_moe_w8a8_int8.CompressedTensorsW8A8Int8MoEMethod: int8.Int8ExpertsMethod,
        compressed_tensors_moe_w8a8_mxfp8.CompressedTensorsW8A8Mxfp8MoEMethod: (
            fp8.Mxfp8ExpertsMethod
        ),
        compressed_tensors_moe_wna16.CompressedTensorsWNA16MoEMethod: (
            weight_only.WeightOnlyExpertsMethod
        ),
        Fp8MoEMethod: fp8.Fp8ExpertsMethod,
        GptOssMxfp4MoEMethod: fp8.Mxfp4ExpertsMethod,
    }

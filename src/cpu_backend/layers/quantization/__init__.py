"""Quantized checkpoints: which of the host's classes this backend provides, one visible list.

Every scheme's weight is packed at load into the one form of
``csrc/kernels/formats/integer_pack.h`` and the checkpoint's copy is freed;
``docs/quantization.md`` says what is computed with which integers.
"""

from __future__ import annotations

import functools
from typing import Any

from cpu_backend.errors import ConfigError

# The host's that quantize a checkpoint while it is read.
AT_LOAD = (
    "experts_int8",
    "fp8",
    "fp8_per_block",
    "fp8_per_channel",
    "fp8_per_tensor",
    "int8_per_channel_weight_only",
    "mxfp8",
    "nvfp4_per_token",
)


def register_own() -> None:
    """This backend's own schemes, and what the host has dropped."""
    from cpu_backend.layers.quantization import at_load, bitsandbytes, gguf

    at_load.register()
    gguf.register()
    bitsandbytes.register()


@functools.cache
def register_configs() -> None:
    """The host's readers of checkpoint configurations that refuse what works here.

    Runs when the host has found out that a model is quantized.
    """
    from cpu_backend.host.bases import register_quantization_config
    from cpu_backend.layers.quantization import awq, gptq, torchao

    for config, names in (
        (gptq.CpuGPTQConfig, ("auto_gptq", "gptq", "gptq_marlin")),
        (awq.CpuAWQConfig, ("auto_awq", "awq", "awq_marlin")),
        (torchao.CpuTorchAOConfig, ("torchao",)),
    ):
        for name in names:
            register_quantization_config(name)(config)


def check(model: Any) -> None:
    """ConfigError for ``--quantization`` with a scheme of checkpoints beside a model configuration
    that says nothing of one: the host would end in a traceback or read weights as scales."""
    from cpu_backend.host.bases import get_quantization_config
    from cpu_backend.layers.quantization.packing import OwnConfig

    if model.quantization in AT_LOAD:
        return
    told = ("quantization_config", "compression_config")
    for config in (model.hf_config, model.hf_text_config):
        if any(getattr(config, name, None) for name in told):
            return
    scheme = get_quantization_config(model.quantization)
    own = issubclass(scheme, OwnConfig)
    if (own and not scheme.of_checkpoints) or scheme.get_config_filenames():
        return  # of which the host says what it looked for
    raise ConfigError(
        f"--quantization {model.quantization} is for checkpoints that were quantized so, which "
        "this one was not: choose cpu_int8 or cpu_int4, which quantize any checkpoint."
    )


def experts_methods() -> dict[type, type]:
    """The host's methods for mixtures of experts, and what reads their tensors here."""
    from cpu_backend.host.bases import UnquantizedFusedMoEMethod
    from cpu_backend.host.quantized_bases import (
        AutoAWQMoEMethod,
        AutoGPTQMoEMethod,
        Fp8MoEMethod,
        GptOssMxfp4MoEMethod,
        ModelOptFp8MoEMethod,
        ModelOptMxFp8FusedMoE,
        ModelOptNvFp4FusedMoE,
        compressed_tensors_moe_w4a4_mxfp4,
        compressed_tensors_moe_w4a4_nvfp4,
        compressed_tensors_moe_w4a8_int8,
        compressed_tensors_moe_w8a8_fp8,
        compressed_tensors_moe_w8a8_int8,
        compressed_tensors_moe_w8a8_mxfp8,
        compressed_tensors_moe_wna16,
    )
    from cpu_backend.layers import experts
    from cpu_backend.layers.quantization import awq, fp8, gptq, int8, weight_only

    return {
        UnquantizedFusedMoEMethod: experts.UnquantizedExpertsMethod,
        AutoAWQMoEMethod: awq.AWQExpertsMethod,
        AutoGPTQMoEMethod: gptq.GPTQExpertsMethod,
        compressed_tensors_moe_w4a4_mxfp4.CompressedTensorsW4A4Mxfp4MoEMethod: (
            fp8.Mxfp4ExpertsMethod
        ),
        compressed_tensors_moe_w4a4_nvfp4.CompressedTensorsW4A4Nvfp4MoEMethod: (
            fp8.NvFp4ExpertsMethod
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
        ModelOptFp8MoEMethod: fp8.ModelOptFp8ExpertsMethod,
        ModelOptMxFp8FusedMoE: fp8.ModelOptMxfp8ExpertsMethod,
        ModelOptNvFp4FusedMoE: fp8.ModelOptNvFp4ExpertsMethod,
    }

"""What layers/quantization derive from of the host's schemes, imported when a model is quantized.

What: the host's kernels, methods and parameters of quantized checkpoints, under one roof.
Why: as of bases.py; these take longer to import.
Since: 0.32
Until: never.
"""

from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import (
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearKernel, MxFp4LinearLayerConfig
from vllm.model_executor.kernels.linear.mxfp8 import Mxfp8LinearKernel, Mxfp8LinearLayerConfig
from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearKernel, NvFp4LinearLayerConfig
from vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel import (
    FP8ScaledMMLinearKernel,
    FP8ScaledMMLinearLayerConfig,
    Int8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
)
from vllm.model_executor.layers.quantization.auto_awq import (
    AutoAWQConfig,
    AutoAWQMarlinLinearMethod,
    AutoAWQMoEMethod,
)
from vllm.model_executor.layers.quantization.auto_gptq import (
    AutoGPTQConfig,
    AutoGPTQMoEMethod,
    get_moe_quant_method,
)
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_w4a4_mxfp4,
    compressed_tensors_moe_w4a4_nvfp4,
    compressed_tensors_moe_w4a8_int8,
    compressed_tensors_moe_w8a8_fp8,
    compressed_tensors_moe_w8a8_int8,
    compressed_tensors_moe_w8a8_mxfp8,
    compressed_tensors_moe_wna16,
)
from vllm.model_executor.layers.quantization.fp8 import Fp8MoEMethod
from vllm.model_executor.layers.quantization.modelopt import (
    ModelOptFp8MoEMethod,
    ModelOptMxFp8FusedMoE,
    ModelOptNvFp4FusedMoE,
)
from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod
from vllm.model_executor.layers.quantization.torchao import TorchAOConfig, TorchAOLinearMethod
from vllm.model_executor.layers.quantization.utils.gptq_utils import get_linear_quant_method
from vllm.model_executor.models.utils import WeightsMapper
from vllm.scalar_type import ScalarType, scalar_types

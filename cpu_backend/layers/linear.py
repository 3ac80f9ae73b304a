"""Linear layers without quantization: packed once after loading."""

from __future__ import annotations

import torch
from vllm.model_executor.layers import utils as host
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from cpu_backend import ops

SUPPORTED = (torch.float32, torch.bfloat16, torch.float16)

_host_dispatch = host.dispatch_cpu_unquantized_gemm


def pack_unquantized(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Give ``layer`` a packed weight and a ``cpu_linear(x, weight, bias)``; see the host's
    ``dispatch_cpu_unquantized_gemm``, which this replaces.

    weight [out_features, in_features]; with ``remove_weight`` the original is freed.  Convolution
    and expert weights (not matrices) stay with the host.
    """
    weight = layer.weight
    if weight.is_meta or weight.dim() != 2 or weight.dtype not in SUPPORTED:
        _host_dispatch(layer, remove_weight)
        return
    # Logits stay in fp32: rounding them to 16 bits makes ties between likely tokens.
    is_logits = isinstance(layer, VocabParallelEmbedding)
    layer.cpu_linear = ops.PackedLinear(weight.detach(), float_output=is_logits)
    if remove_weight:
        layer.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)

"""Intel Extension for PyTorch: its last release is 2.8, for torch 2.8 and no other.

It is imported in an environment of its own (``make ipex-test``), because no host of this project
has that torch any more.
"""

from __future__ import annotations

from typing import Any

import intel_extension_for_pytorch as ipex
import torch
from torch import Tensor

from cpu_backend import envs
from cpu_backend.products import Experts, Linear
from cpu_backend.providers.codes import PlainCodes, plain
from cpu_backend.providers.interface import Matrix, Provider, Unsupported, with_gate


def _prepacked(weight: Tensor) -> torch.nn.Module:
    """A linear layer without a bias whose weight is in IPEX's order."""
    out_features, in_features = weight.shape
    layer = torch.nn.Linear(in_features, out_features, bias=False, dtype=weight.dtype)
    layer.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
    module: torch.nn.Module = ipex.optimize(
        torch.nn.ModuleList([layer]).eval(),
        dtype=weight.dtype,
        auto_kernel_selection=True,
        inplace=True,
    )[0]
    return module


class IpexLinear(Linear):
    """``ipex.llm.modules``: the product, and what follows it, in one op where there is one."""

    def __init__(self, weight: Tensor, parts: int) -> None:
        self.out_features, self.parts = len(weight), parts
        self.nbytes = weight.nbytes
        self._halves = [_prepacked(half) for half in weight.chunk(parts)]
        if parts == 1:
            self._add = ipex.llm.modules.LinearAdd(self._halves[0])
        else:
            self._silu_and_mul = ipex.llm.modules.Linear2SiluMul(*self._halves)

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y = torch.cat([half(x) for half in self._halves], -1)
        return y if bias is None else y + bias

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None = None) -> None:
        """Added where the product is computed, if there is no bias."""
        if bias is not None or self.parts != 1:
            super().add_to(residual, x, bias)
        else:
            residual.copy_(self._add(x, residual))

    def act_and_mul(
        self, out: Tensor, x: Tensor, activation: str, bias: Tensor | None = None
    ) -> None:
        """SiLU and product with the products, if there is no bias."""
        if bias is not None or self.parts != 2 or activation != "silu":
            super().act_and_mul(out, x, activation, bias)
        else:
            out.copy_(self._silu_and_mul(x))


class IpexCodesLinear(Linear):
    """Weight-only 8- or 4-bit codes, dequantized where they are multiplied."""

    def __init__(self, weight: PlainCodes) -> None:
        self.out_features, in_features = weight.codes.shape
        layer = torch.nn.Linear(in_features, self.out_features, bias=False)
        kind = ipex.quantization.WoqWeightDtype
        if weight.bits == 4:
            dtype, codes, zeros = kind.INT4, _pairs(weight.codes), weight.zeros
        else:
            dtype, codes, zeros = kind.INT8, weight.signed(), None
        layer.qconfig = ipex.quantization.get_weight_only_quant_qconfig_mapping(
            weight_dtype=dtype, lowp_mode=ipex.quantization.WoqLowpMode.NONE
        ).global_qconfig
        whole = weight.scales.shape[1] == 1
        module: Any = ipex.nn.modules.WeightOnlyQuantizedLinear.from_float_and_qweight(
            layer,
            codes,
            dtype,
            weight.scales.flatten() if whole else weight.scales,
            zeros if zeros is None or not whole else zeros.flatten(),
            group_size=-1 if whole else weight.size,
        )
        self._linear = module
        self.nbytes = codes.nbytes + weight.scales.nbytes

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y: Tensor = self._linear(x)
        return y if bias is None else y + bias


def _pairs(codes: Tensor) -> Tensor:
    """uint8 [out, in / 2] of codes below 16, the first of a pair in the lower half."""
    if codes.shape[1] % 2:
        raise Unsupported("does not multiply 4-bit codes of an odd number of input channels")
    return (codes[:, ::2] | (codes[:, 1::2] << 4)).to(torch.uint8)


class IpexExperts(Experts):
    """``ipex.llm.modules.GatedMLPMOE``."""

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        self._experts = ipex.llm.modules.GatedMLPMOE(
            gate_up.detach().clone(), down.detach().clone(), use_prepack=envs.packs_experts()
        )

    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        if gate_up_bias is not None or down_bias is not None:
            raise Unsupported("does not have experts with biases")
        elsewhere = topk_ids < 0
        weights, ids = topk_weights.masked_fill(elsewhere, 0), topk_ids.masked_fill(elsewhere, 0)
        given = self._experts(
            x,
            False,
            topk_ids.shape[1],
            weights,
            False,
            custom_routing_function=lambda **_: (weights, ids),
        )
        out.copy_(given)


class Ipex(Provider):
    """fp32 and bf16; weight-only integers."""

    name = "ipex"

    def linear(self, weight: Tensor, parts: int = 1) -> Linear:
        _check(weight.dtype)
        return IpexLinear(weight, parts)

    def quantized(self, matrix: Matrix, dtype: torch.dtype) -> Linear:
        if matrix.activations.kind not in ("int16", "int8"):
            raise Unsupported(f"does not have activations in {matrix.activations.kind}")
        return IpexCodesLinear(plain(matrix))

    def experts(self, gate_up: Tensor, down: Tensor, activation: str) -> Experts:
        _check(gate_up.dtype)
        with_gate(gate_up, down)
        if activation != "silu":
            raise Unsupported(f"does not have experts with {activation}")
        return IpexExperts(gate_up, down)


def _check(dtype: torch.dtype) -> None:
    if dtype == torch.float16 and not ipex._C.onednn_has_fp16_support():
        raise Unsupported("has float16 only for CPUs with AVX512_FP16")


PROVIDER = Ipex

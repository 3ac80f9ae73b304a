"""AMD's zentorch (ZenDNN): a package per release of torch.

Its README names Zen CPUs; but in fp32 the products ask for AVX-512, and fp16 for AVX512_FP16.  It
keeps weights in caches under their address, and does not hear of it when one is freed: every layer
that is made here empties them, so that none meets what another had left there.
"""

from __future__ import annotations

import torch
import zentorch  # noqa: F401 (its import registers the ops)
from torch import Tensor

from cpu_backend import ops
from cpu_backend.products import Experts, Linear
from cpu_backend.providers.codes import plain
from cpu_backend.providers.interface import Matrix, Provider, Unsupported, with_gate


def _forget_freed_weights() -> None:
    torch.ops.zentorch.zentorch_clear_weight_cache()
    torch.ops.zentorch.zentorch_flush_moe_weight_cache()


# Nor does it forget the size of the groups that a weight of 4-bit codes had at an address, and no
# op clears that: another weight there with other groups would be read with its scales out of place.
_GROUP_AT: dict[int, int] = {}


class ZenLinear(Linear):
    """A weight in the order that ZenDNN chooses for it."""

    def __init__(self, weight: Tensor, parts: int) -> None:
        _forget_freed_weights()
        self.out_features, self.parts = len(weight), parts
        self.nbytes = weight.nbytes
        self._weight = torch.ops.zentorch.zentorch_weight_prepack_for_linear(weight)

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y: Tensor = torch.ops.zentorch.zentorch_linear_unary(
            x, self._weight, bias, is_weight_prepacked=True
        )
        return y

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None = None) -> None:
        """Added where the product is computed."""
        y = torch.ops.zentorch.zentorch_linear_unary_binary(
            x, self._weight, residual, bias, is_weight_prepacked=True, post_op_2="add"
        )
        residual.copy_(y)


class ZenInt8Linear(Linear):
    """8-bit codes by 8-bit activations, which get a scale per row."""

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        _forget_freed_weights()
        self.out_features = len(codes)
        self.nbytes = codes.nbytes + scales.nbytes
        self._codes = torch.ops.zentorch.zentorch_weight_prepack_for_dynamic_qlinear(codes)
        self._scales = scales.contiguous()

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y: Tensor = torch.ops.zentorch.zentorch_dynamic_qlinear(
            x, self._codes, self._scales, bias, is_weight_prepacked=True
        )
        return y


class ZenInt4Linear(Linear):
    """4-bit codes by bf16 activations."""

    def __init__(self, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> None:
        """codes int8 [out, in], -8 to 7, or with zeros 0 to 15; scales and zeros [groups, out]."""
        _forget_freed_weights()
        self.out_features = len(codes)
        packed = torch.ops.zentorch.zentorch_woq_repack_weight(codes.contiguous())
        group = codes.shape[1] // len(scales)
        before = []  # held, so that their addresses are not given again
        while _GROUP_AT.setdefault(packed.data_ptr(), group) != group:
            before.append(packed)
            packed = packed.clone()
        self._codes = packed.t()
        self._scales, self._zeros = scales.contiguous(), zeros
        self.nbytes = self._codes.nbytes + scales.nbytes + (0 if zeros is None else zeros.nbytes)

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y: Tensor = torch.ops.zentorch.zentorch_woq_linear(
            x, self._codes, self._scales.to(x.dtype), self._zeros, bias
        )
        return y


class ZenExperts(Experts):
    """All experts in one op, which keeps a packed copy of the weights beside these."""

    def __init__(self, gate_up: Tensor, down: Tensor, activation: str) -> None:
        _forget_freed_weights()
        self._gate_up, self._down = gate_up.detach().clone(), down.detach().clone()
        self._activation = activation

    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        elsewhere = topk_ids < 0
        if elsewhere.any():
            topk_weights = topk_weights.masked_fill(elsewhere, 0)
            topk_ids = topk_ids.masked_fill(elsewhere, 0)
        torch.ops.zentorch.zentorch_fused_moe(
            out,
            x,
            self._gate_up,
            self._down,
            gate_up_bias,
            down_bias,
            topk_weights,
            topk_ids,
            False,
            self._activation,
        )


class Zentorch(Provider):
    """fp32 and bf16, fp16 where the CPU has it; integers as its ops take them."""

    name = "zentorch"

    def linear(self, weight: Tensor, parts: int = 1) -> Linear:
        self._check(weight.dtype)
        return ZenLinear(weight.detach(), parts)

    def quantized(self, matrix: Matrix, dtype: torch.dtype) -> Linear:
        weight = plain(matrix)
        kind = matrix.activations.kind
        if kind == "int8_token":
            if "avx512_vnni" not in ops.load().runnable:  # it would stop at an illegal instruction
                raise Unsupported("has 8-bit activations only for CPUs with AVX512_VNNI")
            return ZenInt8Linear(weight.signed(), weight.per_channel())
        if kind not in ("int16", "int8"):
            raise Unsupported(f"does not have activations in {kind}")
        if dtype != torch.bfloat16:
            raise Unsupported(f"does not multiply 4-bit codes by {str(dtype)[6:]}")
        if weight.bits != 4:
            raise Unsupported("does not multiply 8-bit codes by 16-bit activations")
        self._check(dtype)  # it would print that it cannot, and give numbers all the same
        scales = weight.scales.t()
        if (weight.zeros == 8).all():
            return ZenInt4Linear(weight.signed(), scales, None)
        if (weight.zeros != weight.zeros.round()).any():
            raise Unsupported("does not have zero points between whole numbers")
        # Beside zero points, codes and points are unsigned.
        points = weight.zeros.t().to(torch.int8).contiguous()
        return ZenInt4Linear(weight.codes.to(torch.int8), scales, points)

    def experts(self, gate_up: Tensor, down: Tensor, activation: str) -> Experts:
        self._check(gate_up.dtype)
        with_gate(gate_up, down)
        if activation not in ("silu", "gelu"):
            raise Unsupported(f"does not have experts with {activation}")
        return ZenExperts(gate_up, down, activation)

    def _check(self, dtype: torch.dtype) -> None:
        # On CPUs with AVX512_FP16 it adds up in fp16: 0.7 % of error after 224 products.
        if dtype == torch.float16:
            raise Unsupported("does not sum float16 in float32")
        if dtype == torch.bfloat16 and not torch.ops.zentorch.zentorch_is_bf16_supported():
            raise Unsupported("has bfloat16 only for CPUs with AVX512_BF16")


PROVIDER = Zentorch

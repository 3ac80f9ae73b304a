"""What torch itself brings: oneDNN's packed products, and its own of 8- and 4-bit codes.

oneDNN has fp16 only for CPUs with AVX512_FP16 or AMX; elsewhere torch's plain product serves.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from cpu_backend.products import ACTIVATIONS, Experts, Linear
from cpu_backend.providers.codes import PlainCodes, plain
from cpu_backend.providers.expert_by_expert import ExpertByExpert
from cpu_backend.providers.interface import Matrix, Provider, Unsupported, parts_of

INT4_GROUPS = (256, 128, 64, 32)  # that aten::_weight_int4pack_mm_for_cpu takes


class OneDnnLinear(Linear):
    """A weight in the order that oneDNN chooses for it."""

    def __init__(self, weight: Tensor, parts: int) -> None:
        self.out_features, self.parts = len(weight), parts
        self.nbytes = weight.nbytes
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, bias, "none", [], "")
        return y

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None = None) -> None:
        """Added where the product is computed."""
        y = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, bias, "add")
        residual.copy_(y)


class PlainLinear(Linear):
    """``torch.nn.functional.linear``."""

    def __init__(self, weight: Tensor, parts: int) -> None:
        self.out_features, self.parts = len(weight), parts
        self.nbytes = weight.nbytes
        self._weight = weight.detach().clone()

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        return functional.linear(x, self._weight, bias)


class _CodesLinear(Linear):
    """What layers of codes share: rows in two dimensions, the bias afterwards."""

    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        y = self._rows(x.reshape(-1, x.shape[-1])).to(x.dtype)
        y = y if bias is None else y + bias
        return y.view(*x.shape[:-1], self.out_features)

    @abstractmethod
    def _rows(self, x: Tensor) -> Tensor:
        """x [tokens, in] to [tokens, out] of any dtype."""


class Int4Linear(_CodesLinear):
    """4-bit codes by activations in their own dtype."""

    def __init__(self, weight: PlainCodes) -> None:
        self.out_features, in_features = weight.codes.shape
        # One group over all channels is many that are alike.
        fitting = [g for g in INT4_GROUPS if weight.size % g == 0 and in_features % g == 0]
        if not fitting or self.out_features % 16:
            raise Unsupported(
                f"does not multiply 4-bit codes [{self.out_features}, {in_features}] in groups of "
                f"{weight.size}"
            )
        self._group = fitting[0]
        scales, zeros = (
            t.repeat_interleave(weight.size // self._group, 1)
            for t in (weight.scales, weight.zeros)
        )
        # Here a weight is scale * (code - 8) + offset.
        pairs = torch.stack((scales.t(), (scales * (8 - zeros)).t()), -1).contiguous()
        self._scales_and_offsets = {torch.float32: pairs}
        self._codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            weight.codes.contiguous(), 1
        )
        self.nbytes = self._codes.nbytes + pairs.nbytes

    def _rows(self, x: Tensor) -> Tensor:
        pairs = self._scales_and_offsets.get(x.dtype)
        if pairs is None:
            pairs = self._scales_and_offsets.popitem()[1].to(x.dtype)
            self._scales_and_offsets = {x.dtype: pairs}
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._codes, self._group, pairs)
        return y


class Int8WeightLinear(_CodesLinear):
    """8-bit codes, a scale per output channel, by activations in their own dtype."""

    def __init__(self, weight: PlainCodes) -> None:
        self._codes, self._scales = weight.signed(), weight.per_channel()
        self.out_features = len(self._codes)
        self.nbytes = self._codes.nbytes + self._scales.nbytes

    def _rows(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int8pack_mm(x, self._codes, self._scales.to(x.dtype))
        return y


class Int8Linear(_CodesLinear):
    """8-bit codes by 8-bit activations, which get a scale per row."""

    def __init__(self, weight: PlainCodes) -> None:
        self._codes, self._scales = weight.signed().t(), weight.per_channel()
        self.out_features = self._codes.shape[1]
        self.nbytes = self._codes.nbytes + self._scales.nbytes

    def _rows(self, x: Tensor) -> Tensor:
        scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-10) / 127
        codes = (x / scale).round().to(torch.int8)
        return torch._int_mm(codes, self._codes) * (scale * self._scales)


class PyTorch(Provider):
    """torch's own, in the dtypes and schemes it has for CPUs."""

    name = "torch"

    def linear(self, weight: Tensor, parts: int = 1) -> Linear:
        try:
            return OneDnnLinear(weight.detach(), parts)
        except RuntimeError:  # no such dtype on this CPU
            return PlainLinear(weight, parts)

    def quantized(self, matrix: Matrix, dtype: torch.dtype) -> Linear:
        weight = plain(matrix)
        kind = matrix.activations.kind
        if kind == "int8_token":
            return Int8Linear(weight)
        if kind not in ("int16", "int8"):
            raise Unsupported(f"does not have activations in {kind}")
        return Int4Linear(weight) if weight.bits == 4 else Int8WeightLinear(weight)

    def experts(self, gate_up: Tensor, down: Tensor, activation: str) -> Experts:
        if activation not in ACTIVATIONS:
            raise Unsupported(f"does not have experts with {activation}")
        return ExpertByExpert(
            [self.linear(weight, parts_of(gate_up, down)) for weight in gate_up],
            [self.linear(weight) for weight in down],
            activation,
        )


PROVIDER = PyTorch

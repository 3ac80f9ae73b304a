"""This project's own kernels: every dtype and scheme on every instruction set, and the default."""

from __future__ import annotations

import torch
from torch import Tensor

from cpu_backend import ops
from cpu_backend.products import Experts, Linear
from cpu_backend.providers.interface import Matrix, Provider, parts_of


class Native(Provider):
    """Results are the same bits in any batch, and steps are recorded."""

    name = "native"
    batch_invariant = True
    replayable = True

    def linear(self, weight: Tensor, parts: int = 1) -> Linear:
        return ops.PackedLinear(weight, parts=parts)

    def quantized(self, matrix: Matrix, dtype: torch.dtype) -> Linear:
        return ops.QuantizedLinear(*matrix)

    def experts(self, gate_up: Tensor, down: Tensor, activation: str) -> Experts:
        return ops.Experts(
            [ops.PackedLinear(weight, parts=parts_of(gate_up, down)) for weight in gate_up],
            [ops.PackedLinear(weight) for weight in down],
            activation,
        )


PROVIDER = Native

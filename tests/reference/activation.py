"""Activations under the names of the host's ops."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Function = Callable[[torch.Tensor], torch.Tensor]


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * torch.erfc(-x / math.sqrt(2))


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    # (1 + tanh(y)) / 2, which cancels where y is far below zero.
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def gelu_quick(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


def relu2(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=0) ** 2


def swigluoai(x: torch.Tensor) -> torch.Tensor:
    """gpt-oss: [..., 2 * size] to [..., size]."""
    gate, up = x.chunk(2, dim=-1)
    return gelu_quick(gate.clamp(max=7.0)) * (up.clamp(-7.0, 7.0) + 1)


def swiglustep(x: torch.Tensor) -> torch.Tensor:
    """Step 3.5: [..., 2 * size] to [..., size]."""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate).clamp(max=7.0) * up.clamp(-7.0, 7.0)


def gated(activate: Function, first_half: bool = True) -> Function:
    """[..., 2 * size] to [..., size]: one half activated, times the other."""

    def apply(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return activate(first) * second if first_half else first * activate(second)

    return apply


PLAIN: dict[str, Function] = {
    "gelu_new": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "gelu_tanh": gelu_tanh,
    "gelu_quick": gelu_quick,
    "relu_squared": relu2,
}
GATED: dict[str, Function] = {
    "silu_and_mul": gated(silu),
    "mul_and_silu": gated(silu, first_half=False),
    "gelu_and_mul": gated(gelu),
    "gelu_tanh_and_mul": gated(gelu_tanh),
}

"""What a packed linear layer and a packed mixture of experts can do, whoever computes them.

Layers know nothing else of a provider's (providers/).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * torch.sigmoid(1.702 * x),
    "relu2": lambda x: functional.relu(x).square(),
}


class Linear(ABC):
    """A weight [out_features, in_features] in the order of its provider."""

    out_features: int
    parts = 1  # 2: of a gate and an up projection, side by side
    nbytes: int  # of the packed weight, scales included

    @abstractmethod
    def __call__(
        self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """x [..., in_features] to [..., out_features]; ``weight`` is the host's and not read."""

    def add_to(self, residual: Tensor, x: Tensor, bias: Tensor | None = None) -> None:
        """residual [..., out_features] += linear(x)."""
        residual.add_(self(x, None, bias))

    def act(self, out: Tensor, x: Tensor, activation: str, bias: Tensor | None = None) -> None:
        """out [..., out_features] = act(linear(x))."""
        out.copy_(ACTIVATIONS[activation](self(x, None, bias)))

    def act_and_mul(
        self, out: Tensor, x: Tensor, activation: str, bias: Tensor | None = None
    ) -> None:
        """out [..., out_features / 2] = act(first half of linear(x)) * second half."""
        gate, up = self(x, None, bias).chunk(2, -1)
        torch.mul(ACTIVATIONS[activation](gate), up, out=out)


class Experts(ABC):
    """The feed-forward networks of a mixture of experts, gated or not."""

    @abstractmethod
    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        """x [tokens, hidden] to out, alike in shape: the weighted sum of its experts' outputs.

        topk_weights fp32 and topk_ids int32 [tokens, top_k], a negative id adds nothing;
        gate_up_bias [experts, 2 * intermediate], or without a gate [experts, intermediate];
        down_bias [experts, hidden]; in the dtype of x.
        """

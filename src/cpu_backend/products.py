"""What a packed linear layer and a packed mixture of experts can do, whoever computes them.

Layers know nothing else of a provider's (providers/).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

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


def activate(x: Tensor, activation: str, parts: int) -> Tensor:
    """x [rows, parts * n] to [rows, n]: of two parts the first is the gate of the second."""
    if parts == 1:
        return ACTIVATIONS[activation](x)
    gate, up = x.chunk(2, -1)
    if activation == "swigluoai":  # of gpt-oss
        return ACTIVATIONS["gelu_quick"](gate.clamp(max=7)) * (up.clamp(-7, 7) + 1)
    if activation == "swiglustep":  # of Step 3.5
        return ACTIVATIONS["silu"](gate).clamp(max=7) * up.clamp(-7, 7)
    return ACTIVATIONS[activation](gate) * up


def row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, inputs] @ weight [outputs, inputs].T in fp32, every row by itself: its bits do not
    depend on the others'."""
    columns = weight.float().t()
    return torch.bmm(x.float().unsqueeze(1), columns.expand(len(x), *columns.shape)).squeeze(1)


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
        out.copy_(activate(self(x, None, bias), activation, 2))


class Experts(ABC):
    """The feed-forward networks of a mixture of experts, gated or not.

    layers: of each expert the gate and up projection, or without a gate the up projection, and the
    down projection; none where the provider does not have them one by one.
    """

    layers: Sequence[tuple[Linear, Linear]] = ()
    activation: str

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

"""Causal convolution of channels over a sequence."""

from __future__ import annotations

import torch


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    silu: bool,
) -> torch.Tensor:
    """x [tokens, channels] after the taps - 1 inputs of ``state`` [channels, taps - 1], oldest
    first; weight [channels, taps]."""
    inputs = torch.cat([state.T, x])
    taps = weight.shape[1]
    y = sum(weight[:, j] * inputs[j : j + len(x)] for j in range(taps))
    if bias is not None:
        y = y + bias
    return torch.nn.functional.silu(y) if silu else y

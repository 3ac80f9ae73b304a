"""RMS norms and layer norm."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """x [..., hidden] scaled to unit root-mean-square, then by weight [hidden]."""
    scaled = x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return scaled if weight is None else scaled * weight


def gemma_rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """The same by 1 + weight."""
    return rms_norm(x, None, epsilon) * (1 + weight)


def gated_rms_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    gate_first: bool,
    act: str,
) -> torch.Tensor:
    """x, gate [..., heads, channels]; weight [channels] or [heads, channels]; the gate is applied
    to x or to the result."""
    factor = torch.sigmoid(gate) * (1 if act == "sigmoid" else gate)
    if gate_first:
        return rms_norm(x * factor, weight, epsilon)
    return rms_norm(x, weight, epsilon) * factor


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> torch.Tensor:
    """x [..., hidden] less its mean, scaled to unit variance, then by weight, and bias added."""
    centred = x - x.mean(dim=-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    if weight is not None:
        scaled = scaled * weight
    return scaled if bias is None else scaled + bias

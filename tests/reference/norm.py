"""RMS norm."""

from __future__ import annotations

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """x [..., hidden] scaled to unit root-mean-square, then by weight [hidden]."""
    scaled = x / torch.sqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return scaled if weight is None else scaled * weight

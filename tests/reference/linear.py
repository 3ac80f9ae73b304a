"""Linear layers."""

from __future__ import annotations

import torch


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., in_features] times weight [out_features, in_features], plus bias [out_features]."""
    product = x @ weight.T
    return product if bias is None else product + bias

"""A mixture of gated experts, one token and expert after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch


def mixture(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [tokens, hidden], gate_up [experts, 2 * intermediate, hidden], down [experts, hidden,
    intermediate], topk_weights and topk_ids [tokens, top_k]; ``gate`` makes one of two halves."""
    out = torch.zeros_like(x)
    for t, chosen in enumerate(topk_ids.tolist()):
        for i, e in enumerate(chosen):
            both = gate_up[e] @ x[t]
            if gate_up_bias is not None:
                both = both + gate_up_bias[e]
            result = down[e] @ gate(both)
            if down_bias is not None:
                result = result + down_bias[e]
            out[t] += topk_weights[t, i] * result
    return out

"""Gated delta nets: causal convolution, then the gated delta rule, both of a whole step at once.
Kimi's delta attention is one whose keys have a decay for each of their channels.

A decode is a request of one token to both ops, so what a token's layer gives does not depend on
which requests a step has, nor on where the step before ended (``csrc/kernels/delta_rule.h``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cpu_backend import state_ops


@dataclass(frozen=True)
class Heads:
    """Of one rank: `key_heads` heads of queries and keys, each shared by as many of values."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """[tokens, channels] to query, key [tokens, key_heads, key_dim] and value; views."""
        keys = self.key_heads * self.key_dim
        query, key, value = mixed.split([keys, keys, self.heads * self.value_dim], dim=1)
        return (
            query.unflatten(1, (self.key_heads, self.key_dim)),
            key.unflatten(1, (self.key_heads, self.key_dim)),
            value.unflatten(1, (self.heads, self.value_dim)),
        )


@dataclass(frozen=True)
class Weights:
    """The layer's own: conv [channels, 1, taps]; a_log [heads], fp32; dt_bias [heads], or [heads *
    key_dim] where each channel of the keys decays by itself.  beta lies between 0 and beta_range.
    """

    conv: torch.Tensor
    conv_bias: torch.Tensor | None
    a_log: torch.Tensor
    dt_bias: torch.Tensor
    beta_range: float = 1.0


def attend(
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    heads: Heads,
    weights: Weights,
    conv_states: torch.Tensor,
    states: torch.Tensor,
    step: Any,
) -> torch.Tensor:
    """[tokens, heads, value_dim] of mixed queries, keys and values [tokens, channels].

    a [tokens, heads], or [tokens, heads, key_dim] where each channel of the keys decays by itself;
    b [tokens, heads]; conv_states [slots, channels, taps - 1] and states [slots, heads, key_dim,
    value_dim] are changed in the slots of step, the group's ``attention.states.StateMetadata``.
    """
    mixed = state_ops.causal_conv(
        mixed, weights.conv, weights.conv_bias, conv_states, step.sequences, silu=True
    )
    query, key, value = heads.split(mixed)
    out = torch.empty(value.shape, dtype=value.dtype)
    state_ops.gated_delta_rule(
        out,
        query,
        key,
        value,
        (a, b),
        (weights.a_log, weights.dt_bias),
        states,
        step.sequences,
        weights.beta_range,
    )
    return out

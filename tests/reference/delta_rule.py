"""The gated delta rule, one token of one head after the other."""

from __future__ import annotations

import torch
from torch.nn.functional import softplus


def gates(
    a: torch.Tensor,
    b: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    beta_range: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """a [tokens, heads] or [tokens, heads, key_dim] to the logarithm of the decay, of that shape; b
    [tokens, heads] to beta; a_log [heads], dt_bias with as many elements as a token's a."""
    rate = a_log.exp().view(-1, *[1] * (a.dim() - 2))
    decay = -rate * softplus(a + dt_bias.view(a.shape[1:]), threshold=700.0)
    return decay, beta_range * b.sigmoid()


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    epsilon: float | None = 1e-6,
) -> torch.Tensor:
    """One request's tokens: query, key [tokens, key_heads, key_dim], value [tokens, heads,
    value_dim]; log_decay [tokens, heads] or, by the channels of the keys, [tokens, heads, key_dim];
    beta [tokens, heads]; state [heads, key_dim, value_dim].  Without epsilon queries and keys keep
    their length.

    Returns [tokens + key_dim, heads, value_dim]: what the tokens get, then the state they leave.
    """
    shared = value.shape[1] // key.shape[1]
    if epsilon is not None:
        query = query * (query.square().sum(-1, keepdim=True) + epsilon).rsqrt()
        key = key * (key.square().sum(-1, keepdim=True) + epsilon).rsqrt()
    query = query.repeat_interleave(shared, 1) * query.shape[-1] ** -0.5
    key = key.repeat_interleave(shared, 1)
    out = []
    for q, k, v, g, strength in zip(query, key, value, log_decay, beta, strict=True):
        state = state * g.exp().reshape(len(g), -1, 1)
        recalled = (state * k[:, :, None]).sum(1)
        state = state + k[:, :, None] * (strength[:, None] * (v - recalled))[:, None, :]
        out.append((state * q[:, :, None]).sum(1))
    return torch.cat([torch.stack(out), state.transpose(0, 1)])

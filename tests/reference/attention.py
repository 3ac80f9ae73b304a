"""Attention of one request over its own keys and values, and the order of a cache page."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Masking:
    """What changes the scores; slopes and sinks are [heads]."""

    causal: bool = True
    window: int = -1
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


def visible(query_len: int, seq_len: int, causal: bool, window: int) -> torch.Tensor:
    """[query_len, seq_len]: the queries are the last tokens of the sequence."""
    i = torch.arange(seq_len - query_len, seq_len)[:, None]
    j = torch.arange(seq_len)[None, :]
    mask = torch.ones(query_len, seq_len, dtype=torch.bool)
    if causal:
        mask &= j <= i
    if window > 0:  # a token sees `window` tokens to each side, itself included
        mask &= (i - j < window) & (j - i < window)
    return mask


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, masking: Masking
) -> torch.Tensor:
    """query [query_len, heads, dim] over key, value [seq_len, kv_heads, dim].

    A sink is one more score that has no value.  A query that sees no token gives zeros.
    """
    query_len, heads, _ = query.shape
    seq_len, kv_heads, _ = key.shape
    key = key.repeat_interleave(heads // kv_heads, dim=1)
    value = value.repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("ihd,jhd->hij", query, key) * scale
    if masking.softcap > 0:
        scores = masking.softcap * torch.tanh(scores / masking.softcap)
    if masking.alibi_slopes is not None:
        i = torch.arange(seq_len - query_len, seq_len)[:, None]
        j = torch.arange(seq_len)[None, :]
        scores = scores + masking.alibi_slopes.to(scores)[:, None, None] * (j - i)
    mask = visible(query_len, seq_len, masking.causal, masking.window)
    scores = scores.masked_fill(~mask, float("-inf"))
    if masking.sinks is not None:
        sinks = masking.sinks.to(scores)[:, None, None].expand(heads, query_len, 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., :seq_len].nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", weights, value)


def in_pairs(panel: torch.Tensor, lanes: int | None) -> torch.Tensor:
    """A panel [rows, columns] in the order of numbers that share a word (csrc/kernels/panel.h).

    A word holds columns that are `lanes` apart, the numbers of a vector, or else two rows.
    """
    if lanes is None:
        return panel.unflatten(0, (-1, 2)).transpose(1, 2)
    return panel.unflatten(1, (-1, 2, lanes)).transpose(2, 3)


def page(key: torch.Tensor, value: torch.Tensor, lanes: int | None) -> torch.Tensor:
    """key, value [block_size, dim] of one head in the order of a cache page, flat.

    Keys are stored by channel and values by token; bf16 in pairs.
    """
    panels = [key.T, value]
    if key.dtype == torch.bfloat16:
        panels = [in_pairs(panel, lanes) for panel in panels]
    return torch.cat([panel.reshape(-1) for panel in panels])

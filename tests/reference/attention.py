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


def in_panels(matrix: torch.Tensor, lanes: int) -> torch.Tensor:
    """A matrix [rows, columns] in the order of csrc/kernels/tiles/panel.h, flat: panels of two
    vectors of `lanes` numbers, the last one as narrow as what is left.

    Numbers of less than 32 bits, but for fp16, share a word with the one in the next row or, where
    vectors have less than 16 lanes, `lanes` columns further.
    """
    panels = matrix.split(2 * lanes, 1)
    if matrix.dtype in (torch.bfloat16, torch.uint8):
        if lanes < 16:
            panels = [panel.unflatten(1, (2, lanes)).transpose(1, 2) for panel in panels]
        else:
            panels = [panel.unflatten(0, (-1, 2)).transpose(1, 2) for panel in panels]
    return torch.cat([panel.reshape(-1) for panel in panels])


def page(key: torch.Tensor, value: torch.Tensor, lanes: int) -> torch.Tensor:
    """key, value [block_size, dim] of one head in the order of a cache page, flat: keys by channel,
    then values by token."""
    return torch.cat([in_panels(key.T, lanes), in_panels(value, lanes)])

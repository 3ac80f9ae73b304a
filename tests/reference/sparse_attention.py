"""Which tokens an indexer picks, and attention to those."""

from __future__ import annotations

import torch


def scores(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scale: float
) -> torch.Tensor:
    """[query_len, seq_len] of query [query_len, heads, dim], weights [query_len, heads] and keys
    [seq_len, dim]; what lies behind a token is -inf."""
    found = torch.einsum("ihd,jd->ihj", query, keys).relu() * scale
    found = torch.einsum("ih,ihj->ij", weights, found)
    seq_len = len(keys)
    position = torch.arange(seq_len - len(query), seq_len)[:, None]
    return found.masked_fill(torch.arange(seq_len) > position, float("-inf"))


def choose(of_scores: torch.Tensor, most: int) -> list[list[int]]:
    """For each row of scores the positions of the highest, ascending; the earlier of equal ones."""
    seq_len = of_scores.shape[1]
    chosen = []
    for i, row in enumerate(of_scores.tolist()):
        position = seq_len - len(of_scores) + i
        best = sorted(range(position + 1), key=lambda p: (-row[p], p))
        chosen.append(sorted(best[:most]))
    return chosen


def attend(
    query: torch.Tensor, keys: torch.Tensor, value_dim: int, chosen: list[list[int]], scale: float
) -> torch.Tensor:
    """query [query_len, heads, dim] over keys [seq_len, dim], whose beginning are the values."""
    rows = []
    for token, positions in zip(query, chosen, strict=True):
        seen = keys[positions]
        rows.append((token @ seen.T * scale).softmax(-1) @ seen[:, :value_dim])
    return torch.stack(rows)

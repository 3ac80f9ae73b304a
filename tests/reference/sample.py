"""Token choice."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def argmax(row: torch.Tensor) -> int:
    """Index of the largest value; the lowest wins ties, NaN never wins, -inf only if alone."""
    best, at = float("-inf"), 0
    for index, value in enumerate(row.tolist()):
        if value > best:
            best, at = value, index
    return at


def uniform(seed: int, column: int) -> float:
    """In (0, 1): two rounds of the murmur3 finalizer over seed and column."""
    seed &= (1 << 64) - 1
    h = (column * 0x9E3779B1 + seed) & _MASK
    for _ in range(2):
        h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
        h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
        h = ((h ^ (h >> 16)) + (seed >> 32)) & _MASK
    return ((h >> 9) + 0.5) / (1 << 23)


def gumbel_argmax(row: torch.Tensor, seed: int) -> int:
    """One draw from softmax(row): the largest logit after Gumbel noise."""
    u = torch.tensor([uniform(seed, i) for i in range(len(row))], dtype=torch.float64)
    return argmax(row.double() - torch.log(-torch.log(u)))

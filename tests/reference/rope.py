"""Rotary position embedding."""

from __future__ import annotations

import torch


def cos_sin_cache(max_position: int, rotary_dim: int, base: float = 10000.0) -> torch.Tensor:
    """[max_position, rotary_dim] fp64: cosines of all frequencies, then sines."""
    frequencies = base ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.arange(max_position, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rotate(
    x: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    neox: bool,
    offset: int = 0,
    inverse: bool = False,
) -> torch.Tensor:
    """x [tokens, heads, head_dim] with rotary_dim channels from ``offset`` rotated."""
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    sin = -sin if inverse else sin
    rotary_dim = cos_sin.shape[1]
    turned = x[..., offset : offset + rotary_dim]
    # Neox pairs channel i with i + rotary_dim / 2; otherwise neighbours are paired.
    first, second = turned.chunk(2, dim=-1) if neox else (turned[..., ::2], turned[..., 1::2])
    pair = (first * cos - second * sin, second * cos + first * sin)
    result = x.clone()
    result[..., offset : offset + rotary_dim] = (
        torch.cat(pair, dim=-1) if neox else torch.stack(pair, dim=-1).flatten(-2)
    )
    return result

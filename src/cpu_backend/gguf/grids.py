"""The block types of GGUF whose codes choose runs of 4 or 8 values from a table, the type's grid.

A block is 256 values.  Its bytes, d being fp16; a run of 8 values has 8 signs:

IQ2_XXS  d, 8 of: runs 4, uint32 of signs 4 of 7 bits and scale 4    d / 4 * (scale + 1/2) * ±value
IQ2_XS   d, uint16 32 of run 9 and signs 7, scales 8                 the same, per 16
IQ2_S    d, runs 32, signs 32, high bits 8, scales 8                 the same
IQ3_XXS  d, runs 64, uint32 8 of signs 4 of 7 bits and scale 4       d / 2 * (scale + 1/2) * ±value
IQ3_S    d, runs 64, high bits 8, signs 32, scales 4                 d * (2 * scale + 1) * ±value
IQ1_S    d, runs 32, uint16 8 of high bits 4 of 3, scale 3, sign
                                                          d * (2 * scale + 1) * (value ± 1/8)
IQ1_M    runs 32, high bits and signs 16, uint16 4 of scales 4 of 3 bits and a quarter of d
                                                          the same, per 16

Of signs in 7 bits the eighth makes their number even.  The layouts are those of ggml
(ggml-common.h); the grids, which follow no rule, are read from the package ``gguf``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from cpu_backend.gguf.layouts import Blocks, half, pairs, single_bits, table_of, typed

# Signs in 7 bits to those of 8 values.
_SIGNS = torch.tensor(
    [bits | (bits.bit_count() & 1) << 7 for bits in range(128)], dtype=torch.uint8
)
_MAGNITUDES_2 = [8, 25, 43, 0]
_MAGNITUDES_3 = [4, 12, 20, 28, 36, 44, 52, 62]
IQ2 = table_of(_MAGNITUDES_2 + [-size for size in _MAGNITUDES_2])
IQ3_XXS = table_of(_MAGNITUDES_3 + [-size for size in _MAGNITUDES_3])
IQ3_S = table_of([*range(1, 16, 2), *range(-1, -16, -2)])
IQ1 = table_of([-7, 1, 9, 0, -9, -1, 7])  # eighths, of values -1 to 1


@functools.cache
def _grid(name: str) -> torch.Tensor:
    """uint8 [runs, values of each]: which of the type's values, in their order."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    return torch.from_numpy(np.searchsorted(kind.grid_map, kind.grid[0, 0]).astype(np.uint8))


def _codes(name: str, runs: torch.Tensor, negative: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes [rows, columns] of runs and, as highest bit, of flags, 0 or 1, of 1 or 8 values."""
    values = _grid(name)[runs.int()].flatten(1)
    flags = negative.to(torch.uint8).flatten(1)
    return values | flags.repeat_interleave(values.shape[1] // flags.shape[1], 1) << bits - 1


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., n, 8] bits, lowest first."""
    return single_bits(packed.unsqueeze(-1)).squeeze(-1)


def _fields(words: torch.Tensor, places: list[int], bits: int) -> torch.Tensor:
    """[..., n] words to [..., n, fields] numbers of so many bits."""
    return words.unsqueeze(-1) >> torch.tensor(places, dtype=words.dtype) & (1 << bits) - 1


def _iq2_xxs(blocks: torch.Tensor, order: str) -> Blocks:
    parts = blocks[..., 2:].unflatten(-1, (8, 8))
    words = typed(parts[..., 4:], torch.int32, order).squeeze(-1)
    signs = _bits(_SIGNS[_fields(words, [0, 7, 14, 21], 7)])
    scales = (0.5 + _fields(words, [28], 4).squeeze(-1)) * half(blocks, 0, order)[..., None] / 4
    codes = _codes("IQ2_XXS", parts[..., :4], signs, 3)
    return Blocks(codes, scales.flatten(1), 32, 3, table=IQ2)


def _iq2_scales(blocks: torch.Tensor, at: int, order: str) -> torch.Tensor:
    """fp32 [rows, groups of 16] of the 8 bytes from ``at`` on."""
    d = half(blocks, 0, order).float().unsqueeze(-1)
    return ((0.5 + pairs(blocks[..., at : at + 8])) * d / 4).flatten(1)


def _iq2_xs(blocks: torch.Tensor, order: str) -> Blocks:
    words = typed(blocks[..., 2:66], torch.int16, order)
    codes = _codes("IQ2_XS", words & 511, _bits(_SIGNS[(words >> 9 & 127).int()]), 3)
    return Blocks(codes, _iq2_scales(blocks, 66, order), 16, 3, table=IQ2)


def _iq2_s(blocks: torch.Tensor, order: str) -> Blocks:
    high = _fields(blocks[..., 66:74], [0, 2, 4, 6], 2).flatten(-2).short()
    codes = _codes("IQ2_S", blocks[..., 2:34] | high << 8, _bits(blocks[..., 34:66]), 3)
    return Blocks(codes, _iq2_scales(blocks, 74, order), 16, 3, table=IQ2)


def _iq3_xxs(blocks: torch.Tensor, order: str) -> Blocks:
    words = typed(blocks[..., 66:], torch.int32, order)
    signs = _bits(_SIGNS[_fields(words, [0, 7, 14, 21], 7)])
    scales = (0.5 + _fields(words, [28], 4).squeeze(-1)) * half(blocks, 0, order)[..., None] / 2
    codes = _codes("IQ3_XXS", blocks[..., 2:66], signs, 4)
    return Blocks(codes, scales.flatten(1), 32, 4, table=IQ3_XXS)


def _iq3_s(blocks: torch.Tensor, order: str) -> Blocks:
    high = _bits(blocks[..., 66:74]).flatten(-2).short()
    codes = _codes("IQ3_S", blocks[..., 2:66] | high << 8, _bits(blocks[..., 74:106]), 4)
    d = half(blocks, 0, order).float().unsqueeze(-1)
    scales = (2 * pairs(blocks[..., 106:]) + 1) * d
    return Blocks(codes, scales.flatten(1), 32, 4, table=IQ3_S)


def _iq1_s(blocks: torch.Tensor, order: str) -> Blocks:
    words = typed(blocks[..., 34:], torch.int16, order)
    runs = blocks[..., 2:34] | _fields(words, [0, 3, 6, 9], 3).flatten(-2) << 8
    d = half(blocks, 0, order).float().unsqueeze(-1)
    scales = (2 * (words >> 12 & 7) + 1) * d / 8
    # There is one flag for each scale: its values are those of 2 - code with the other sign.
    negative = words < 0
    codes = _grid("IQ1_S")[runs.int()].unflatten(2, (8, 4)).flatten(3)
    codes = torch.where(negative.unsqueeze(-1), 2 - codes, codes)
    scales = torch.where(negative, -scales, scales)
    return Blocks(codes.flatten(1), scales.flatten(1), 32, 2, table=IQ1)


def _iq1_m(blocks: torch.Tensor, order: str) -> Blocks:
    high = pairs(blocks[..., 32:48])
    runs = blocks[..., :32] | (high & 7).short() << 8
    words = typed(blocks[..., 48:], torch.int16, order)
    quarters = words >> torch.tensor([12, 8, 4, 0], dtype=torch.int16)
    places = torch.tensor([15, 15 << 4, 15 << 8, -1 << 12], dtype=torch.int16)
    d = (quarters & places).sum(-1, dtype=torch.int16).view(torch.half).float()
    scales = (2 * _fields(words, [0, 3, 6, 9], 3).flatten(-2) + 1) * d.unsqueeze(-1) / 8
    return Blocks(_codes("IQ1_M", runs, high >> 3, 3), scales.flatten(1), 16, 3, table=IQ1)


GRIDS: dict[str, Callable[[torch.Tensor, str], Blocks]] = {
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
}

"""The block types of GGUF as integer codes, scales and offsets.

A block is a run of 32 or 256 values of one row.  Bytes of a block, d and m being fp16:

Q4_0, Q5_0   d [high bits 4] nibbles 16           d * (code - 8 or 16)
Q4_1, Q5_1   d m [high bits 4] nibbles 16         d * code + m
Q8_0         d int8 32                            d * code
Q4_K, Q5_K   d m scales 12 [high bits 32] nibbles 128
                                                  per 32: d * scale * code - m * min, 6-bit each
Q6_K         low 128, high 64, scales int8 16, d  per 16: d * scale * (code - 32)

The layouts are those of ggml (ggml-common.h); tests compare with the package ``gguf``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from cpu_backend.gguf.reader import BlockType

# Rounding scales to fp16 may move them by so much, relative Frobenius norm: an eighth of what
# rounding the weights themselves to bf16 does.
NARROW_BELOW = 2.0**-11
CHUNK_ELEMENTS = 1 << 22
LARGEST_GROUP = 32  # columns that share a scale: 32 or 16


@dataclass(frozen=True)
class Blocks:
    """A quantized matrix: codes uint8 [rows, columns], scales and offsets [rows, groups].

    A value is scale * (code - middle), or scale * code + offset.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
    bits: int
    middle: int = 0
    offsets: torch.Tensor | None = None

    def dequantized(self) -> torch.Tensor:
        """The matrix in fp32, to the bit what ggml computes."""
        codes = self.codes.unflatten(1, (-1, self.group)).float()
        scales = self.scales.float().unsqueeze(-1)
        if self.offsets is None:
            values = (codes - self.middle) * scales
        else:
            values = codes * scales + self.offsets.float().unsqueeze(-1)
        return values.flatten(1)

    def taken(self, columns: torch.Tensor) -> Blocks:
        """Only these columns, in this order; whole groups (``groups_stay``)."""
        groups = columns[:: self.group] // self.group
        offsets = None if self.offsets is None else self.offsets[:, groups]
        return replace(
            self, codes=self.codes[:, columns], scales=self.scales[:, groups], offsets=offsets
        )

    def narrowed(self) -> Blocks:
        """With scales in fp16 where that is as good: always, but for matrices of tiny weights."""
        tables = [t for t in (self.scales, self.offsets) if t is not None]
        if not all(_fits_half(table) for table in tables):
            return self
        offsets = None if self.offsets is None else self.offsets.half()
        return replace(self, scales=self.scales.half(), offsets=offsets)


def _fits_half(table: torch.Tensor) -> bool:
    if table.dtype == torch.half:
        return True
    error = torch.linalg.vector_norm(table.half().float() - table)
    return bool(error <= NARROW_BELOW * torch.linalg.vector_norm(table))


def groups_stay(kind: BlockType, columns: np.ndarray) -> bool:
    """Whether columns that share a scale stay together when a matrix gets this order of them."""
    if not kind.quantized:
        return True
    if len(columns) % LARGEST_GROUP:
        return False
    groups = columns.reshape(-1, LARGEST_GROUP)
    starts = groups[:, :1]
    aligned = (starts % LARGEST_GROUP == 0).all()
    return bool(aligned and (groups == starts + np.arange(LARGEST_GROUP)).all())


def unpack(kind: BlockType, raw: torch.Tensor, order: str = "<") -> Blocks:
    """raw uint8 [rows, bytes] of a quantized type; ``order`` is the file's byte order."""
    columns = raw.shape[1] // kind.nbytes * kind.elements
    codes = torch.empty(raw.shape[0], columns, dtype=torch.uint8)
    parts = []
    for rows in _chunks(raw.shape[0], columns):
        part = _UNPACK[kind.name](raw[rows].unflatten(1, (-1, kind.nbytes)), order)
        codes[rows] = part.codes
        parts.append(part)
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return replace(
        parts[0],
        codes=codes,
        scales=torch.cat([part.scales for part in parts]),
        offsets=torch.cat(offsets) if offsets else None,
    )


def dequantize(
    kind: BlockType, raw: torch.Tensor, order: str = "<", dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """raw uint8 [rows, bytes] of any type as a matrix of ``dtype``."""
    if not kind.quantized:
        return _typed(raw, _PLAIN[kind.name], order).to(dtype)
    columns = raw.shape[1] // kind.nbytes * kind.elements
    result = torch.empty(raw.shape[0], columns, dtype=dtype)
    for rows in _chunks(raw.shape[0], columns):
        result[rows] = unpack(kind, raw[rows], order).dequantized()
    return result


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Rows to work on at a time, so that what is made in between stays small."""
    step = max(1, CHUNK_ELEMENTS // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _typed(raw: torch.Tensor, dtype: torch.dtype, order: str) -> torch.Tensor:
    """The last dimension's bytes as numbers of ``dtype``."""
    if (order == "<") != (sys.byteorder == "little"):
        raw = raw.unflatten(-1, (-1, dtype.itemsize)).flip(-1).flatten(-2)
    if raw.storage_offset() % dtype.itemsize or not raw.is_contiguous():
        raw = raw.clone(memory_format=torch.contiguous_format)
    return raw.view(dtype)


def _half(blocks: torch.Tensor, at: int, order: str) -> torch.Tensor:
    """The fp16 number at byte ``at`` of each block: [rows, blocks]."""
    return _typed(blocks[..., at : at + 2], torch.half, order).squeeze(-1)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 2 n] codes: all low nibbles, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], -1)


def _fifth_bits(packed: torch.Tensor, order: str) -> torch.Tensor:
    """A 32-bit number per block to the bit, 0 or 16, of each of its 32 codes."""
    if order == ">":
        packed = packed.flip(-1)
    places = torch.arange(8, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> places & 1) << 4).flatten(-2)


def _q4_0(blocks: torch.Tensor, order: str) -> Blocks:
    return Blocks(_nibbles(blocks[..., 2:]).flatten(1), _half(blocks, 0, order), 32, 4, 8)


def _q4_1(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 4:]).flatten(1)
    return Blocks(codes, _half(blocks, 0, order), 32, 4, offsets=_half(blocks, 2, order))


def _q5_0(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6], order)
    return Blocks(codes.flatten(1), _half(blocks, 0, order), 32, 8, 16)


def _q5_1(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8], order)
    scales, offsets = _half(blocks, 0, order), _half(blocks, 2, order)
    return Blocks(codes.flatten(1), scales, 32, 8, offsets=offsets)


def _q8_0(blocks: torch.Tensor, order: str) -> Blocks:
    codes = blocks[..., 2:] ^ 128  # int8 + 128
    return Blocks(codes.flatten(1), _half(blocks, 0, order), 32, 8, 128)


def _k_scales(blocks: torch.Tensor, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 scales and offsets [rows, groups of 32] of Q4_K and Q5_K.

    Of the 8 scales and 8 minima of a block the first four have their six bits in bytes 0-3 and
    4-7; the others have four bits in bytes 8-11 and two above those of the first.
    """
    first, second, third = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    d, m = (_half(blocks, at, order).float().unsqueeze(-1) for at in (0, 2))
    return (scales * d).flatten(1), (minima * m).neg_().flatten(1)


def _q4_k(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 16:].unflatten(-1, (4, 32))).flatten(1)
    scales, offsets = _k_scales(blocks, order)
    return Blocks(codes, scales, 32, 4, offsets=offsets)


def _q5_k(blocks: torch.Tensor, order: str) -> Blocks:
    low = _nibbles(blocks[..., 48:].unflatten(-1, (4, 32))).unflatten(-1, (2, 32)).flatten(-3, -2)
    places = torch.arange(8, dtype=torch.uint8).unsqueeze(-1)
    high = (blocks[..., 16:48].unsqueeze(-2) >> places & 1) << 4
    scales, offsets = _k_scales(blocks, order)
    return Blocks((low | high).flatten(1), scales, 32, 8, offsets=offsets)


def _q6_k(blocks: torch.Tensor, order: str) -> Blocks:
    # Halves of 128 values: 64 bytes of low and 32 of high bits for four runs of 32.
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64))).unflatten(-1, (4, 32))
    places = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).unsqueeze(-1)
    high = (blocks[..., 128:192].unflatten(-1, (2, 1, 32)) >> places & 3) << 4
    scales = (
        _typed(blocks[..., 192:208], torch.int8, order)
        * _half(blocks, 208, order).float()[..., None]
    )
    return Blocks((low | high).flatten(1), scales.flatten(1), 16, 8, 32)


_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNPACK: dict[str, Callable[[torch.Tensor, str], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}

"""The block types of GGUF as integer codes, scales and offsets.

A block is a run of 32, 64 or 256 values of one row.  Bytes of a block, d and m being fp16:

Q4_0, Q5_0   d [high bits 4] nibbles 16           d * (code - 8 or 16)
Q4_1, Q5_1   d m [high bits 4] nibbles 16         d * code + m
Q8_0         d int8 32                            d * code
Q4_K, Q5_K   d m scales 12 [high bits 32] nibbles 128
                                                  per 32: d * scale * code - m * min, 6-bit each
Q6_K         low 128, high 64, scales int8 16, d  per 16: d * scale * (code - 32)
Q2_K         scales 16, codes 64, d m             per 16: d * scale * code - m * min, 4-bit each
Q3_K         high bits 32, low 64, scales 12, d   per 16: d * (scale - 32) * (code - 4), 6-bit
IQ4_NL       d nibbles 16                         d * VALUES[nibble]
IQ4_XS       d high 2, low 4, nibbles 128         per 32: d * (scale - 32) * VALUES[nibble], 6-bit
TQ1_0        base-3 digits 48 of 5, 4 of 4, d     d * (digit - 1)
TQ2_0        codes 64, d                          d * (code - 1)
MXFP4        exponent 1, nibbles 16               2^(exponent - 127) * e2m1
NVFP4        scales e4m3 4, nibbles 32            per 16: scale * e2m1

The layouts are those of ggml (ggml-common.h); tests compare with the package ``gguf``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

# Rounding scales to fp16 may move them by so much, relative Frobenius norm: an eighth of what
# rounding the weights themselves to bf16 does.
NARROW_BELOW = 2.0**-11


def table_of(values: list[int]) -> torch.Tensor:
    """Of up to 16 values, -128 to 127, that codes stand for."""
    filled = values + [0] * (16 - len(values))
    return torch.tensor(filled, dtype=torch.int8).view(torch.uint8) ^ 128


IQ4 = table_of([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
TWICE_E2M1 = table_of([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


@dataclass(frozen=True)
class Blocks:
    """A quantized matrix: codes uint8 [rows, columns], scales and offsets [rows, groups].

    A value is scale * (code - middle), scale * code + offset, or with a table, uint8 [16],
    scale * (table[code] - 128).
    """

    codes: torch.Tensor
    scales: torch.Tensor
    group: int
    bits: int
    middle: int = 0
    offsets: torch.Tensor | None = None
    table: torch.Tensor | None = None

    def dequantized(self) -> torch.Tensor:
        """The matrix in fp32, to the bit what ggml computes."""
        codes, middle = self.codes, self.middle
        if self.table is not None:
            codes, middle = self.table[codes.int()], 128
        codes = codes.float().unflatten(1, (-1, self.group))
        scales = self.scales.float().unsqueeze(-1)
        if self.offsets is None:
            values = (codes - middle) * scales
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
        """With scales in 16 bits where that is as good: always, but for tiny weights."""
        tables = [t for t in (self.scales, self.offsets) if t is not None]
        if self.scales.itemsize == 2 or not all(fits_half(table) for table in tables):
            return self
        offsets = None if self.offsets is None else self.offsets.half()
        return replace(self, scales=self.scales.half(), offsets=offsets)


def fits_half(table: torch.Tensor) -> bool:
    """Whether fp16 holds a matrix's scales well enough."""
    error = torch.linalg.vector_norm(table.half().float() - table)
    return bool(error <= NARROW_BELOW * torch.linalg.vector_norm(table))


def typed(raw: torch.Tensor, dtype: torch.dtype, order: str) -> torch.Tensor:
    """The last dimension's bytes as numbers of ``dtype``."""
    if (order == "<") != (sys.byteorder == "little"):
        raw = raw.unflatten(-1, (-1, dtype.itemsize)).flip(-1).flatten(-2)
    if raw.storage_offset() % dtype.itemsize or not raw.is_contiguous():
        raw = raw.clone(memory_format=torch.contiguous_format)
    return raw.view(dtype)


def half(blocks: torch.Tensor, at: int, order: str) -> torch.Tensor:
    """The fp16 number at byte ``at`` of each block: [rows, blocks]."""
    return typed(blocks[..., at : at + 2], torch.half, order).squeeze(-1)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 2 n] codes: all low nibbles, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], -1)


def pairs(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 2 n] codes: low and high nibble of each."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2)


def _two_bits(packed: torch.Tensor, width: int = 32) -> torch.Tensor:
    """[..., n * width] bytes to [..., n, 4, width] codes: all lowest pairs of bits first."""
    places = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).unsqueeze(-1)
    return packed.unflatten(-1, (-1, 1, width)) >> places & 3


def single_bits(packed: torch.Tensor) -> torch.Tensor:
    """[..., n] bytes to [..., 8, n] bits: all lowest ones first."""
    places = torch.arange(8, dtype=torch.uint8).unsqueeze(-1)
    return packed.unsqueeze(-2) >> places & 1


def _fifth_bits(packed: torch.Tensor, order: str) -> torch.Tensor:
    """A 32-bit number per block to the bit, 0 or 16, of each of its 32 codes."""
    if order == ">":
        packed = packed.flip(-1)
    places = torch.arange(8, dtype=torch.uint8)
    return ((packed.unsqueeze(-1) >> places & 1) << 4).flatten(-2)


def _q4_0(blocks: torch.Tensor, order: str) -> Blocks:
    return Blocks(_nibbles(blocks[..., 2:]).flatten(1), half(blocks, 0, order), 32, 4, 8)


def _q4_1(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 4:]).flatten(1)
    return Blocks(codes, half(blocks, 0, order), 32, 4, offsets=half(blocks, 2, order))


def _q5_0(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6], order)
    return Blocks(codes.flatten(1), half(blocks, 0, order), 32, 8, 16)


def _q5_1(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8], order)
    scales, offsets = half(blocks, 0, order), half(blocks, 2, order)
    return Blocks(codes.flatten(1), scales, 32, 8, offsets=offsets)


def _q8_0(blocks: torch.Tensor, order: str) -> Blocks:
    codes = blocks[..., 2:] ^ 128  # int8 + 128
    return Blocks(codes.flatten(1), half(blocks, 0, order), 32, 8, 128)


def _k_scales(blocks: torch.Tensor, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 scales and offsets [rows, groups of 32] of Q4_K and Q5_K.

    Of the 8 scales and 8 minima of a block the first four have their six bits in bytes 0-3 and
    4-7; the others have four bits in bytes 8-11 and two above those of the first.
    """
    first, second, third = blocks[..., 4:16].unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    d, m = (half(blocks, at, order).float().unsqueeze(-1) for at in (0, 2))
    return (scales * d).flatten(1), (minima * m).neg_().flatten(1)


def _q4_k(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _nibbles(blocks[..., 16:].unflatten(-1, (4, 32))).flatten(1)
    scales, offsets = _k_scales(blocks, order)
    return Blocks(codes, scales, 32, 4, offsets=offsets)


def _q5_k(blocks: torch.Tensor, order: str) -> Blocks:
    low = _nibbles(blocks[..., 48:].unflatten(-1, (4, 32))).unflatten(-1, (2, 32)).flatten(-3, -2)
    high = single_bits(blocks[..., 16:48]) << 4
    scales, offsets = _k_scales(blocks, order)
    return Blocks((low | high).flatten(1), scales, 32, 8, offsets=offsets)


def _q6_k(blocks: torch.Tensor, order: str) -> Blocks:
    # Halves of 128 values: 64 bytes of low and 32 of high bits for four runs of 32.
    low = _nibbles(blocks[..., :128].unflatten(-1, (2, 64))).unflatten(-1, (4, 32))
    high = _two_bits(blocks[..., 128:192]) << 4
    scales = (
        typed(blocks[..., 192:208], torch.int8, order) * half(blocks, 208, order).float()[..., None]
    )
    return Blocks((low | high).flatten(1), scales.flatten(1), 16, 8, 32)


def _q2_k(blocks: torch.Tensor, order: str) -> Blocks:
    d, m = (half(blocks, at, order).float().unsqueeze(-1) for at in (80, 82))
    scales, minima = (blocks[..., :16] & 15) * d, (blocks[..., :16] >> 4) * m
    codes = _two_bits(blocks[..., 16:80]).flatten(1)
    return Blocks(codes, scales.flatten(1), 16, 2, offsets=minima.neg_().flatten(1))


def _q3_k(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _two_bits(blocks[..., 32:96]).flatten(-3, -2) | single_bits(blocks[..., :32]) << 2
    high = _two_bits(blocks[..., 104:108], 4).flatten(-3)
    scales = (_nibbles(blocks[..., 96:104]) | high << 4).float() - 32
    scales *= half(blocks, 108, order).float().unsqueeze(-1)
    return Blocks(codes.flatten(1), scales.flatten(1), 16, 3, 4)


def _iq4_nl(blocks: torch.Tensor, order: str) -> Blocks:
    return Blocks(_nibbles(blocks[..., 2:]).flatten(1), half(blocks, 0, order), 32, 4, table=IQ4)


def _iq4_xs(blocks: torch.Tensor, order: str) -> Blocks:
    # A scale's upper two bits are in one 16-bit number per block, the lower four in nibbles.
    places = torch.arange(0, 16, 2, dtype=torch.int16)
    high = typed(blocks[..., 2:4], torch.int16, order) >> places & 3
    scales = (pairs(blocks[..., 4:8]) | high << 4).float() - 32
    scales *= half(blocks, 0, order).float().unsqueeze(-1)
    codes = _nibbles(blocks[..., 8:].unflatten(-1, (8, 16)))
    return Blocks(codes.flatten(1), scales.flatten(1), 32, 4, table=IQ4)


def _digits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """[..., n] bytes to [..., count * n] codes 0 to 2: all first digits, then all second ones.

    A byte / 256 is a fraction in base 3; multiplied by a power of 3, its next digit comes first.
    """
    powers = torch.tensor([3**place for place in range(count)], dtype=torch.uint8).unsqueeze(-1)
    fractions = packed.unsqueeze(-2) * powers  # modulo 256
    return (fractions.short() * 3 >> 8).byte().flatten(-2)


def _tq1_0(blocks: torch.Tensor, order: str) -> Blocks:
    parts = ((0, 32, 5), (32, 48, 5), (48, 52, 4))
    codes = torch.cat([_digits(blocks[..., a:b], count) for a, b, count in parts], -1)
    return Blocks(codes.flatten(1), half(blocks, 52, order), 256, 2, 1)


def _tq2_0(blocks: torch.Tensor, order: str) -> Blocks:
    codes = _two_bits(blocks[..., :64]).flatten(1)
    return Blocks(codes, half(blocks, 64, order), 256, 2, 1)


def _mxfp4(blocks: torch.Tensor, order: str) -> Blocks:
    # Half the power of two, as the bits of bf16; the lowest two are subnormal.
    exponents = blocks[..., 0].short()
    bits = torch.where(exponents < 2, 32 * (exponents + 1), (exponents - 1) << 7)
    scales = bits.view(torch.bfloat16)
    return Blocks(_nibbles(blocks[..., 1:]).flatten(1), scales, 32, 4, table=TWICE_E2M1)


def _nvfp4(blocks: torch.Tensor, order: str) -> Blocks:
    # Moved to where fp16 has exponent and fraction, the scales are 2^-8 of what they are, and
    # half of that is wanted.  ggml ignores signs, and takes the NaN without one for zero.
    stored = blocks[..., :4].flatten(1)
    scales = ((stored & 127).short() << 7).view(torch.half) * 128
    codes = _nibbles(blocks[..., 4:].unflatten(-1, (4, 8))).flatten(1)
    return Blocks(codes, scales.masked_fill_(stored == 127, 0), 16, 4, table=TWICE_E2M1)


# Name -> from uint8 [rows, blocks, bytes] and the file's byte order.
LAYOUTS: dict[str, Callable[[torch.Tensor, str], Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}

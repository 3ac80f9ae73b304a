"""GGUF's block types: values as the package ``gguf`` has them, products as accurate as bf16."""

from __future__ import annotations

import sys

import gguf
import numpy as np
import pytest
import torch

from cpu_backend.gguf import blocks
from cpu_backend.gguf.grids import GRIDS
from cpu_backend.gguf.reader import BLOCK_TYPES, BlockType
from cpu_backend.layers.quantization.gguf_blocks import pack_blocks
from tests.ops.test_quant_linear import assert_as_good_as_bf16

QUANTIZED = [kind for kind in BLOCK_TYPES.values() if kind.quantized]
# Where a block has fp16 numbers; everything else in it is integers, valid whatever they are.
HALVES = {
    **{"Q4_0": [0], "Q5_0": [0], "Q8_0": [0], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108]},
    **{"IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": []},
    **{"IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0]},
    "IQ1_M": [],  # a quarter of it in each of four words
}
# Bits per weight as packed, with scales.
KEPT_BITS = {
    **{"Q4_0": 4.5, "Q4_1": 5, "Q5_0": 8.5, "Q5_1": 9, "Q8_0": 8.5},
    **{"Q2_K": 4, "Q3_K": 4, "Q4_K": 5, "Q5_K": 9, "Q6_K": 9},
    **{"IQ4_NL": 4.5, "IQ4_XS": 4.5, "TQ1_0": 2.0625, "TQ2_0": 2.0625, "MXFP4": 4.5, "NVFP4": 5},
    **{"IQ2_XXS": 3.5, "IQ2_XS": 4, "IQ2_S": 4, "IQ3_XXS": 4.5, "IQ3_S": 4.5},
    **{"IQ1_S": 2.5, "IQ1_M": 4},
}


def random_blocks(kind: BlockType, rows: int, columns: int, scale: float = 0.01) -> torch.Tensor:
    """Random bytes uint8 [rows, bytes] with scales about ``scale``."""
    generator = np.random.default_rng(20)
    if not kind.quantized:
        values = torch.from_numpy(generator.standard_normal((rows, columns)))
        dtype = {"F32": torch.float, "F16": torch.half, "BF16": torch.bfloat16}[kind.name]
        return values.to(dtype).view(torch.uint8)
    shape = (rows, columns // kind.elements, kind.nbytes)
    raw = generator.integers(0, 256, shape, dtype=np.uint8)
    for at in HALVES.get(kind.name, [0, 2]):
        numbers = generator.standard_normal((*shape[:2], 1)) * scale
        raw[..., at : at + 2] = numbers.astype(np.float16).view(np.uint8)
    if kind.name == "MXFP4":  # powers of two: scale / 4 to 4 * scale
        raw[..., 0] = generator.integers(-2, 3, shape[:2]) + 127 + round(np.log2(scale))
    if kind.name == "IQ1_M":
        words = raw[..., 48:].view("<u2")
        d = (generator.standard_normal(shape[:2]) * scale).astype("<f2").view("<u2")
        words[:] = words & 0xFFF | (d[..., None] << np.array([12, 8, 4, 0], "<u2")) & 0xF000
    return torch.from_numpy(raw.reshape(rows, -1))


def reference(kind: BlockType, raw: torch.Tensor) -> torch.Tensor:
    typed = {"F32": np.float32, "F16": np.float16}.get(kind.name, np.uint8)
    values = gguf.dequantize(raw.numpy().view(typed), gguf.GGMLQuantizationType[kind.name])
    return torch.from_numpy(values.astype(np.float32))


@pytest.mark.parametrize("kind", BLOCK_TYPES.values(), ids=lambda kind: kind.name)
def test_values_are_those_of_the_package_gguf(
    kind: BlockType, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = {kind: number for number, kind in BLOCK_TYPES.items()}[kind]
    assert gguf.GGMLQuantizationType(number).name == kind.name
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (kind.elements, kind.nbytes)
    raw = random_blocks(kind, 7, 512)
    assert torch.equal(blocks.dequantize(kind, raw), reference(kind, raw))
    monkeypatch.setattr(blocks, "CHUNK_ELEMENTS", 1024)  # two rows at a time
    assert torch.equal(blocks.dequantize(kind, raw), reference(kind, raw))


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_of_one_byte(name: str) -> None:
    """Also those that no file should have: NaN, signs, and what overflows with a code."""
    [kind] = [kind for kind in QUANTIZED if kind.name == name]
    raw = random_blocks(kind, 256, 256).view(256, -1, kind.nbytes)
    scales = 1 if name == "MXFP4" else 4
    raw[..., :scales] = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1)
    raw = raw.view(256, -1)
    assert torch.equal(blocks.dequantize(kind, raw), reference(kind, raw))
    assert torch.equal(blocks.unpack(kind, raw).narrowed().dequantized(), reference(kind, raw))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_the_other_byte_order(kind: BlockType) -> None:
    """Files for big-endian machines have the bytes of longer numbers the other way around."""
    raw = random_blocks(kind, 3, 512)
    swapped = raw.clone().view(3, -1, kind.nbytes)
    numbers = [(at, 2) for at in HALVES.get(kind.name, [0, 2])]
    # Fifth bits, and the upper bits of scales.
    numbers += {
        **{"Q5_0": [(2, 4)], "Q5_1": [(4, 4)], "IQ4_XS": [(2, 2)]},
        "IQ2_XXS": [(at, 4) for at in range(6, 66, 8)],
        "IQ2_XS": [(at, 2) for at in range(2, 66, 2)],
        "IQ3_XXS": [(at, 4) for at in range(66, 98, 4)],
        "IQ1_S": [(at, 2) for at in range(34, 50, 2)],
        "IQ1_M": [(at, 2) for at in range(48, 56, 2)],
    }.get(kind.name, [])
    for at, size in numbers:
        swapped[..., at : at + size] = swapped[..., at : at + size].flip(-1)
    found = blocks.dequantize(kind, swapped.view(3, -1), order=">")
    assert torch.equal(found, reference(kind, raw))


@pytest.mark.parametrize("kind", [k for k in BLOCK_TYPES.values() if k.elements == 1], ids=str)
def test_plain_numbers_of_both_byte_orders_on_machines_of_both(
    kind: BlockType, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = random_blocks(kind, 3, 512)
    swapped = raw.view(3, -1, kind.nbytes).flip(-1).view(3, -1)
    expected = reference(kind, raw)
    mine, others = ("<", ">") if sys.byteorder == "little" else (">", "<")
    assert torch.equal(blocks.dequantize(kind, raw, mine), expected)
    assert torch.equal(blocks.dequantize(kind, swapped, others), expected)
    # Where the machine's order is said to be the other, files of this one's are swapped.
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    assert torch.equal(blocks.dequantize(kind, swapped, mine), expected)
    assert torch.equal(blocks.dequantize(kind, raw, others), expected)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 17, 256), (5, 33, 512), (50, 70, 1024)])
@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_products_are_as_accurate_as_bf16(
    kind: BlockType, m: int, n: int, k: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    raw = random_blocks(kind, n, k)
    x, bias = (torch.randn(*s, generator=seeded).to(dtype) for s in ((m, k), (n,)))
    out = pack_blocks(kind, raw)(x, None, bias)
    assert out.dtype == dtype
    assert_as_good_as_bf16(out, x, reference(kind, raw).double(), bias)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_bits_per_weight(kind: BlockType) -> None:
    """Those in docs/quantization.md, and a little that is read past the end."""
    packed = pack_blocks(kind, random_blocks(kind, 512, 1024))
    assert 0 <= packed.nbytes * 8 / (512 * 1024) - KEPT_BITS[kind.name] < 0.1


def test_ternary_blocks_as_they_are_made(seeded: torch.Generator) -> None:
    """Of the four codes of TQ2_0 the last, 2, is one that none has: without it no table is read."""
    [kind] = [kind for kind in QUANTIZED if kind.name == "TQ2_0"]
    raw = random_blocks(kind, 33, 512)
    codes = raw.view(33, -1, kind.nbytes)[..., :64]
    codes &= ~(codes >> 1 & 0x55)
    x = torch.randn(4, 512, generator=seeded)
    assert blocks.unpack(kind, raw).codes.max() == 2
    assert_as_good_as_bf16(pack_blocks(kind, raw)(x), x, reference(kind, raw).double(), None)


@pytest.mark.parametrize("kind", [k for k in QUANTIZED if k.elements == 32], ids=lambda k: k.name)
def test_a_row_that_is_no_multiple_of_a_k_block(kind: BlockType, seeded: torch.Generator) -> None:
    raw = random_blocks(kind, 19, 96)
    x = torch.randn(4, 96, generator=seeded)
    assert_as_good_as_bf16(pack_blocks(kind, raw)(x), x, reference(kind, raw).double(), None)


@pytest.mark.parametrize("name", ["Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_XS", *GRIDS])
def test_scales_are_narrowed_only_where_that_is_exact_enough(name: str) -> None:
    [kind] = [kind for kind in QUANTIZED if kind.name == name]
    usual = blocks.unpack(kind, random_blocks(kind, 16, 512)).narrowed()
    assert usual.scales.dtype == torch.half
    wide = blocks.unpack(kind, random_blocks(kind, 16, 512))
    assert wide.scales.dtype == torch.float
    assert torch.linalg.vector_norm(usual.scales.float() - wide.scales) <= (
        2**-11 * torch.linalg.vector_norm(wide.scales)
    )
    # Beyond what fp16 holds.
    large = random_blocks(kind, 32, 512, scale=2e4)
    assert blocks.unpack(kind, large).narrowed().scales.dtype == torch.float


@pytest.mark.parametrize(
    "kind", [k for k in QUANTIZED if HALVES.get(k.name) != []], ids=lambda kind: kind.name
)
def test_scales_that_are_not_finite_are_refused(kind: BlockType) -> None:
    raw = random_blocks(kind, 4, 512)
    at = HALVES.get(kind.name, [0, 2])[-1]
    raw.view(4, -1, kind.nbytes)[2, 1, at : at + 2] = torch.tensor([0xFF, 0x7F], dtype=torch.uint8)
    with pytest.raises(ValueError, match="scales of blocks that are not finite"):
        pack_blocks(kind, raw)


@pytest.mark.parametrize("kind", BLOCK_TYPES.values(), ids=lambda kind: kind.name)
def test_columns_in_another_order(kind: BlockType) -> None:
    """Heads of 128 channels move, half a block of 256, and one rank's are packed alone; of ternary
    types, whose blocks have one scale, heads of 256."""
    raw = random_blocks(kind, 48, 1024)
    head = max(128, blocks.columns_together(kind))
    order = np.arange(1024).reshape(2, -1, head).swapaxes(0, 1).reshape(-1)
    if kind.quantized:
        halves = np.arange(1024).reshape(-1, blocks.columns_together(kind) // 2)[::-1].reshape(-1)
        assert not blocks.groups_stay(kind, halves)
    assert blocks.groups_stay(kind, order)
    assert blocks.groups_stay(kind, order[::-1]) != kind.quantized
    columns = torch.from_numpy(order)[512:]
    expected = blocks.dequantize(kind, raw)[:, columns]
    if kind.quantized:
        assert torch.equal(blocks.unpack(kind, raw).taken(columns).dequantized(), expected)
    packed = pack_blocks(kind, raw, dtype=torch.float32, columns=columns)
    x = torch.randn(3, 512, generator=torch.Generator().manual_seed(20))
    product = x @ expected.t()
    assert torch.linalg.vector_norm(packed(x) - product) < 1e-3 * torch.linalg.vector_norm(product)

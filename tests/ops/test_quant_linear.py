"""Linear layers with quantized weights: accuracy, definitions, sources of codes and bad input."""

from __future__ import annotations

import pytest
import torch

from cpu_backend.ops import (
    Activations,
    Codes,
    GroupScales,
    PackedLinear,
    QuantizedLinear,
    kept_bits,
)
from tests.ops.accuracy import check_op, guarded
from tests.reference.quant import (
    dequantize,
    dequantize_levels,
    int8_activations,
    quantize_weight,
)

# [tokens, out_features, in_features]
SHAPES = [(1, 17, 64), (3, 33, 96), (4, 40, 100), (5, 64, 257), (13, 129, 512), (50, 70, 1000)]
GROUPS = [32, 64, 128, -1]


def random(seeded: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded)


def symmetric(codes: torch.Tensor, bits: int) -> Codes:
    """int8 codes around 0."""
    return Codes(codes, "bytes", bits, 2 ** (bits - 1))


def assert_as_good_as_bf16(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """At most twice the error of torch in bf16 on the dequantized weight, against fp64."""
    add = 0 if bias is None else bias
    exact = x.double() @ weight.t() + add
    bf16 = torch.nn.functional.linear(
        x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()
    )
    error, earned = (out.double() - exact).abs().max(), (bf16.double() - exact).abs().max()
    assert error <= 2 * earned, f"error {error:.3e}, torch's in bf16 {earned:.3e}"


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("zero", ["middle", "point", "offset"])
def test_weight_only_is_as_accurate_as_bf16(
    m: int,
    n: int,
    k: int,
    group: int,
    bits: int,
    zero: str,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    group = k if group == -1 else min(group, k)
    codes, scales = quantize_weight(random(seeded, n, k), bits, group, dtype)
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n).to(dtype)
    zeros = None
    if zero == "point":
        zeros = torch.randint(0, 2**bits + 1, scales.shape, generator=seeded).to(dtype)
    if zero == "offset":
        zeros = random(seeded, *scales.shape).to(dtype)
    offset = codes if zero == "middle" else codes.int() + 2 ** (bits - 1)
    weight = dequantize(offset, scales, group, zeros, zero == "offset")
    layer = QuantizedLinear(symmetric(codes, bits), GroupScales(scales, group, zeros, zero), k)
    out = layer(x, None, bias)
    assert out.dtype == dtype
    assert_as_good_as_bf16(out, x, weight, bias)


def random_levels(seeded: torch.Generator, n: int, k: int) -> torch.Tensor:
    """uint16 [pieces, n], every step and base that is allowed."""
    steps = torch.randint(0, 18, (-(-k // 32), n), generator=seeded)
    bases = (torch.rand(steps.shape, generator=seeded) * (256 - 15 * steps)).int()
    return (steps + 256 * bases).to(torch.uint16)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("group", [32, 96, 128])
def test_levels_are_as_accurate_as_bf16_and_are_8_bit_codes(
    m: int, n: int, k: int, group: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    group = min(group, k)
    codes = torch.randint(0, 16, (n, k), generator=seeded).byte()
    scales = ((random(seeded, -(-k // group), n).abs() + 0.1) / 100).half()
    levels = random_levels(seeded, n, k)
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n).to(dtype)
    groups = GroupScales(scales, group, levels, "levels")
    layer = QuantizedLinear(Codes(codes, "bytes", 4), groups, k)
    weight = dequantize_levels(codes, scales, group, levels)
    assert_as_good_as_bf16(layer(x, None, bias), x, weight, bias)
    level = levels.int()[torch.arange(k) // 32].t()
    expanded = Codes((codes * (level & 255) + (level >> 8)).byte(), "bytes", 8)
    for activations in map(Activations, ("int16", "int8", "int8_token", "int8_token_azp")):
        layer = QuantizedLinear(Codes(codes, "bytes", 4), groups, k, activations)
        plain = QuantizedLinear(expanded, GroupScales(scales, group), k, activations)
        assert torch.equal(layer(x, None, bias), plain(x, None, bias))


@pytest.mark.parametrize(
    "activations",
    [
        Activations("int8_token"),
        Activations("int8_token_azp"),
        Activations("int8_static", 0.03),
        Activations("int8_static_azp", 0.02, 31),
        Activations("int8_static_azp", 0.02, -128),
    ],
    ids=lambda a: f"{a.kind} {a.zero}",
)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_integer_schemes_are_their_definition(
    activations: Activations,
    m: int,
    n: int,
    k: int,
    bits: int,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    """float(exact integer) times the two scales, rounded once to the type of the activations."""
    codes = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (n, k), generator=seeded)
    codes = codes.to(torch.int8)
    codes[0], codes[-1] = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scales = random(seeded, 1, n).abs() / 100 + 0.001  # sums stay below the largest fp16
    x = random(seeded, m, k).to(dtype)
    x[0, 0] *= 30
    layer = QuantizedLinear(symmetric(codes, bits), GroupScales(scales, k), k, activations)
    rows, row_scales = int8_activations(x, activations.kind, activations.scale, activations.zero)
    exact = (rows @ codes.double().t()) * row_scales * scales.double()
    out = layer(x).double()
    unit = torch.finfo(dtype).eps / 2 + 3 * torch.finfo(torch.float32).eps
    assert ((out - exact).abs() <= unit * exact.abs() + 1e-30).all()


@pytest.mark.parametrize("group", [32, 100, -1])
def test_w4a8_is_its_definition(group: int, seeded: torch.Generator) -> None:
    """Activations in int8 per row and group (at most 128 channels of it), integer sums."""
    m, n, k = 9, 33, 700
    group = k if group == -1 else group
    codes, scales = quantize_weight(random(seeded, n, k), 4, group, torch.float32)
    starts = [
        (begin, first)
        for begin in range(0, k, group)
        for first in range(begin, min(begin + group, k), 128)
    ]
    # No number is near the middle between two codes, where fp32 may round to either.
    x = (
        torch.randint(-120, 121, (m, k), generator=seeded)
        + torch.rand(m, k, generator=seeded) * 0.8
        - 0.4
    )
    x[:, [first for _, first in starts]] = 127
    x *= random(seeded, m, 1)
    layer = QuantizedLinear(symmetric(codes, 4), GroupScales(scales, group), k, Activations("int8"))
    exact = torch.zeros(m, n, dtype=torch.float64)
    for begin, first in starts:
        piece = slice(first, min(first + 128, begin + group, k))
        largest = x[:, piece].abs().amax(-1, keepdim=True)
        rows = (x[:, piece] * (127 / largest)).round().double()
        sums = rows @ codes[:, piece].double().t()
        exact += sums * (largest / 127).double() * scales[begin // group].double()
    out = layer(x).double()
    assert (out - exact).abs().max() <= 2e-6 * exact.abs().max()


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("group", [32, 128, -1])
def test_fp8_is_as_accurate_as_bf16(
    m: int, n: int, k: int, group: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    group = k if group == -1 else min(group, k)
    codes = (random(seeded, n, k) * 100).to(torch.float8_e4m3fn)
    codes.view(-1)[:2] = torch.tensor([448.0, 2.0**-9]).to(torch.float8_e4m3fn)
    scales = (random(seeded, -(-k // group), n).abs() + 0.1) / 100
    x, bias = random(seeded, m, k).to(dtype), random(seeded, n).to(dtype)
    layer = QuantizedLinear(
        Codes(codes, "bytes", 8), GroupScales(scales, group), k, Activations("float")
    )
    weight = dequantize(codes.double(), scales, group)
    out = layer(x, None, bias)
    assert_as_good_as_bf16(out, x, weight, bias)
    for rows in (slice(0, 1), slice(0, 3), slice(m // 2, m)):
        assert torch.equal(layer(x[rows], None, bias), out[rows])


@pytest.mark.parametrize(("n", "k"), [(5, 64), (40, 320), (33, 31), (100, 1000)])
@pytest.mark.parametrize("kind", ["int16", "int8"])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("group", [16, 32])
def test_codes_of_a_table_are_the_same_weight_in_8_bits(
    n: int,
    k: int,
    kind: str,
    strided: bool,
    group: int,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    codes = torch.randint(0, 16, (n, k + k % 2), generator=seeded).to(torch.uint8)
    pairs = codes[:, ::2] | codes[:, 1::2] << 4
    table = torch.randint(0, 256, (16,), generator=seeded).to(torch.uint8)
    groups = GroupScales(random(seeded, -(-k // group), n).abs(), min(group, k))
    if strided:
        pairs = pairs.repeat(1, 2)[:, : pairs.shape[1]]
    activations = Activations(kind)
    packed = QuantizedLinear(Codes(pairs, "pairs_of_k", 4, table=table), groups, k, activations)
    bytewise = Codes(codes[:, :k], "bytes", 4, table=table)
    plain = QuantizedLinear(Codes(table[codes[:, :k].int()], "bytes", 8), groups, k, activations)
    if k > 100:
        assert packed.nbytes < 0.7 * plain.nbytes
    for tokens in (1, 3, 40):
        x = random(seeded, tokens, k).to(dtype)
        assert torch.equal(packed(x), plain(x))
        assert torch.equal(QuantizedLinear(bytewise, groups, k, activations)(x), plain(x))


@pytest.mark.parametrize("bits", [2, 3])
@pytest.mark.parametrize("kind", ["int16", "int8", "int8_token_azp"])
@pytest.mark.parametrize("zero", ["middle", "point", "offset", "table"])
@pytest.mark.parametrize(("n", "k", "group"), [(5, 64, 64), (40, 320, 16), (100, 1000, 128)])
def test_narrow_codes_keep_their_size_and_are_the_same_weight_in_4_bits(
    bits: int, kind: str, zero: str, n: int, k: int, group: int, seeded: torch.Generator
) -> None:
    codes = torch.randint(0, 2**bits, (n, k), generator=seeded).to(torch.uint8)
    scales = random(seeded, -(-k // group), n).half()
    zeros, table = None, None
    if zero == "point":
        zeros = torch.randint(0, 2**bits + 1, scales.shape, generator=seeded).half()
    elif zero == "offset":
        zeros = random(seeded, *scales.shape).half()
    elif zero == "table":
        table = torch.randint(0, 256, (16,), generator=seeded).to(torch.uint8)
    groups = GroupScales(scales, group, zeros, zero if zeros is not None else "point")
    add = 8 - 2 ** (bits - 1) if zero == "middle" else 0
    wide = Codes(codes, "bytes", 4, add, table)
    narrow, same = (
        QuantizedLinear(c, groups, k, Activations(kind))
        for c in (Codes(codes, "bytes", bits, 0, table), wide)
    )
    columns = -(-n // 32) * 32  # in whole panels
    saved = (4 - bits) * k * n // 8
    assert saved <= same.nbytes - narrow.nbytes <= saved * columns / n
    for tokens in (1, 3, 40):
        x = random(seeded, tokens, k).bfloat16()
        assert torch.equal(narrow(x), same(x))


def packed_stream(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint codes [rows, size] as int32 words of a stream of bits along the second dimension."""
    rows, size = codes.shape
    stream = (codes.long()[:, :, None] >> torch.arange(bits)) & 1
    stream = torch.nn.functional.pad(stream.reshape(rows, -1), (0, -size * bits % 32))
    words = (stream.reshape(rows, -1, 32) << torch.arange(32)).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("order", ["words_of_k", "words_of_n", "words_of_n_awq"])
@pytest.mark.parametrize("strided", [False, True])
def test_codes_in_any_order_are_the_same_weight(
    bits: int, order: str, strided: bool, seeded: torch.Generator
) -> None:
    if order == "words_of_n_awq" and bits != 4:
        bits = 4
    n, k, group = 24, 75, 32
    codes = torch.randint(0, 2**bits, (n, k), generator=seeded)
    scales = random(seeded, 3, n)
    x = random(seeded, 4, k)
    add = 2 ** (kept_bits(bits) - 1) - 2 ** (bits - 1)
    along_n = codes.t()
    if order == "words_of_n_awq":
        along_n = along_n.reshape(k, n // 8, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(k, n)
    words = packed_stream(codes if order == "words_of_k" else along_n, bits)
    if strided:
        words = words.t().contiguous().t()
    groups = GroupScales(scales, group)
    packed = QuantizedLinear(Codes(words, order, bits, add), groups, k)
    plain = QuantizedLinear(Codes(codes.to(torch.uint8), "bytes", bits, add), groups, k)
    assert torch.equal(packed(x), plain(x))
    weight = dequantize(codes - 2 ** (bits - 1), scales, group)
    assert_as_good_as_bf16(packed(x), x, weight, None)


def test_act_order_reads_channels_where_they_are(seeded: torch.Generator) -> None:
    """Channels sorted by their group, groups of unequal size filled up with -1."""
    m, n, k = 5, 40, 90
    group_of = torch.randint(0, 4, (k,), generator=seeded)
    codes = torch.randint(0, 16, (n, k), generator=seeded).to(torch.uint8)
    scales = random(seeded, 4, n)
    zeros = torch.randint(0, 16, (4, n), generator=seeded).float()
    weight = (codes.double() - zeros[group_of].t()) * scales[group_of].t().double()
    size = int(group_of.bincount(minlength=4).max())
    channels = torch.full((4, size), -1, dtype=torch.int32)
    for g in range(4):
        members = (group_of == g).nonzero().flatten().int()
        channels[g, : len(members)] = members
    groups = GroupScales(scales, size, zeros, channels=channels.flatten())
    x = random(seeded, m, k)
    layer = QuantizedLinear(Codes(codes, "bytes", 4), groups, k)
    assert_as_good_as_bf16(layer(x), x, weight, None)


def make(
    seeded: torch.Generator, kind: str = "int16", n: int = 50, k: int = 300
) -> QuantizedLinear:
    codes, scales = quantize_weight(random(seeded, n, k), 4, 64, torch.float32)
    return QuantizedLinear(symmetric(codes, 4), GroupScales(scales, 64), k, Activations(kind))


@pytest.mark.parametrize("kind", ["int16", "int8", "int8_token"])
def test_result_of_a_row_depends_on_neither_batch_nor_threads(
    kind: str, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    layer, x = make(seeded, kind, 130, 400), random(seeded, 40, 400).to(dtype)
    together = layer(x)
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(layer(x), together)
        for size in (1, 3, 4, 5, 13):
            assert torch.equal(layer(x[7 : 7 + size]), together[7 : 7 + size])


def test_output_and_input_shapes(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = make(seeded)
    x = random(seeded, 6, 300).to(dtype)
    expected = layer(x)
    assert torch.equal(layer(x.view(2, 3, 300)), expected.view(2, 3, 50))
    assert torch.equal(layer(x[2]), expected[2])
    assert layer(x[:0]).shape == (0, 50)
    wide = torch.full((6, 320), float("nan"), dtype=dtype)
    wide[:, 7:307] = x
    assert torch.equal(layer(wide[:, 7:307]), expected)
    layer._float_output = True
    precise = layer(x)
    assert precise.dtype == torch.float32
    assert torch.equal(precise.to(dtype), expected)


def test_packed_size_is_codes_and_scales(seeded: torch.Generator) -> None:
    codes, scales = quantize_weight(random(seeded, 256, 512), 4, 32, torch.bfloat16)
    layer = QuantizedLinear(symmetric(codes, 4), GroupScales(scales, 32), 512)
    size = 256 * 512 // 2 + 256 * 16 * 2
    assert size <= layer.nbytes < size + 2048  # matrix tiles may read a little past the end


def test_quantized_linear_passes_opcheck(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = make(seeded)
    for bias in (None, random(seeded, 50).to(dtype)):
        arguments = (random(seeded, 5, 300).to(dtype), layer._handle, 50, bias, False)
        check_op(torch.ops.cpu_backend.linear.default, arguments)


def test_what_does_not_fit_is_refused(seeded: torch.Generator) -> None:
    codes, scales = quantize_weight(random(seeded, 16, 64), 4, 32, torch.float32)
    good, groups = symmetric(codes, 4), GroupScales(scales, 32)
    layer = QuantizedLinear(good, groups, 64)
    with pytest.raises(ValueError, match=r"the weight needs \[tokens, 64\]"):
        layer(torch.ones(3, 63))
    with pytest.raises(TypeError, match="bias has dtype Half but input has Float"):
        layer(torch.ones(3, 64), None, torch.ones(16).half())
    with pytest.raises(ValueError, match=r"scales have shape \[2, 16\], expected \[4, 16\]: 64"):
        QuantizedLinear(good, GroupScales(scales, 16), 64)
    with pytest.raises(ValueError, match="a group of 128 channels of 64 is not possible"):
        QuantizedLinear(good, GroupScales(scales, 128), 64)
    with pytest.raises(TypeError, match="zeros have dtype Half but the scales have Float"):
        QuantizedLinear(good, GroupScales(scales, 32, scales.half()), 64)
    with pytest.raises(ValueError, match=r"codes has shape \[16, 64\], expected \[16, 65\]"):
        QuantizedLinear(good, GroupScales(scales, 33), 65)
    with pytest.raises(TypeError, match="packed codes have dtype Char, not int32"):
        QuantizedLinear(Codes(codes, "words_of_k", 4), groups, 64)
    with pytest.raises(ValueError, match="AWQ's order of codes is one of eight 4-bit columns"):
        QuantizedLinear(Codes(codes[:2].int().t(), "words_of_n_awq", 3), groups, 64)
    with pytest.raises(
        ValueError, match='order is "rows"; known are bytes, pairs_of_k, words_of_k'
    ):
        QuantizedLinear(Codes(codes, "rows", 4), groups, 64)
    with pytest.raises(ValueError, match='activations is "int4"; known are int16, int8'):
        QuantizedLinear(good, groups, 64, Activations("int4"))
    with pytest.raises(ValueError, match="zero point 200 is no int8"):
        QuantizedLinear(good, groups, 64, Activations("int8_static_azp", 1.0, 200))
    channels = torch.arange(1, 65, dtype=torch.int32)
    with pytest.raises(ValueError, match="channel 64 of 64 does not exist"):
        QuantizedLinear(good, GroupScales(scales, 32, channels=channels), 64)
    fp8 = codes.float().to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match='float8_e4m3fn weights take activations "float"'):
        QuantizedLinear(Codes(fp8, "bytes", 8), groups, 64)
    with pytest.raises(ValueError, match='float8_e4m3fn weights take activations "float"'):
        QuantizedLinear(good, groups, 64, Activations("float"))
    with pytest.raises(TypeError, match="codes in pairs have dtype Char"):
        QuantizedLinear(Codes(codes, "pairs_of_k", 4), groups, 64)
    pairs = codes[:, :32].contiguous().view(torch.uint8)
    with pytest.raises(ValueError, match=r"codes has shape \[16, 32\], expected \[16, 33\]"):
        QuantizedLinear(Codes(pairs, "pairs_of_k", 4), GroupScales(scales, 33), 65)
    with pytest.raises(ValueError, match="two codes in a byte have 4 bits each, not 8"):
        QuantizedLinear(Codes(pairs, "pairs_of_k", 8), groups, 64)
    table = torch.zeros(16, dtype=torch.uint8)
    zeros = GroupScales(scales, 32, torch.ones_like(scales))
    with pytest.raises(ValueError, match="have at most 4 bits and no zeros, and meet integers"):
        QuantizedLinear(Codes(pairs, "pairs_of_k", 4, table=table), zeros, 64)
    with pytest.raises(ValueError, match="have at most 4 bits and no zeros, and meet integers"):
        QuantizedLinear(Codes(codes, "bytes", 8, table=table), groups, 64)
    with pytest.raises(ValueError, match=r"table has shape \[15\], expected \[16\]"):
        QuantizedLinear(Codes(pairs, "pairs_of_k", 4, table=table[1:]), groups, 64)
    with pytest.raises(TypeError, match="table has dtype Int"):
        QuantizedLinear(Codes(pairs, "pairs_of_k", 4, table=table.int()), groups, 64)
    fp8[3, 5] = float("nan")
    with pytest.raises(ValueError, match="the weight has NaN in it"):
        QuantizedLinear(Codes(fp8, "bytes", 8), groups, 64, Activations("float"))
    with pytest.raises(TypeError, match="scales has dtype Double"):
        QuantizedLinear(good, GroupScales(scales.double(), 32), 64)


def test_levels_that_do_not_fit_are_refused(seeded: torch.Generator) -> None:
    codes = Codes(torch.randint(0, 16, (16, 160), generator=seeded).byte(), "bytes", 4)
    scales, levels = torch.ones(2, 16), random_levels(seeded, 16, 160)
    for groups, error, match in (
        (GroupScales(scales, 80, levels, "levels"), ValueError, "is a multiple of 32, this one"),
        (GroupScales(scales[:1], 160, levels, "levels"), ValueError, "at most 128 channels"),
        (GroupScales(scales, 128, levels.short(), "levels"), TypeError, "Short, not uint16"),
        (GroupScales(scales, 128, levels[:4], "levels"), ValueError, r"expected \[5, 16\]"),
        (GroupScales(scales, 128, levels, "floors"), ValueError, 'zero_kind is "floors"; known'),
    ):
        with pytest.raises(error, match=match):
            QuantizedLinear(codes, groups, 160)
    beyond = levels.clone()
    beyond[3, 7] = 16 + 256 * 16
    with pytest.raises(ValueError, match="pass 255"):
        QuantizedLinear(codes, GroupScales(scales, 128, beyond, "levels"), 160)
    wide = Codes(codes.tensor, "bytes", 8)
    with pytest.raises(ValueError, match="integer codes of 4 bits"):
        QuantizedLinear(wide, GroupScales(scales, 128, levels, "levels"), 160)


def test_output_of_the_op_stays_inside_its_rows(seeded: torch.Generator) -> None:
    """Through the host's op that takes an output, which a quantized handle serves as well."""
    layer, out = make(seeded), guarded(3, 50, torch.float32)
    x = random(seeded, 3, 300)
    torch.ops._C.onednn_mm(out.rows, x, None, torch.tensor(layer._handle))
    assert torch.equal(out.rows, layer(x))
    out.assert_intact()
    assert isinstance(layer, PackedLinear)

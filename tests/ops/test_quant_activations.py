"""The host's int8 and fp8 ops under its own names: activations, and the scaled int8 product."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.ops.accuracy import ODD_SIZES, guarded


def random(seeded: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded)


@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("azp", [None, -30], ids=["symmetric", "azp"])
def test_static_quant(
    size: int, azp: int | None, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x = guarded(5, size, dtype, (random(seeded, 5, size) * 20).to(dtype)).rows
    out = torch.full((5, size), 99, dtype=torch.int8)
    zero = None if azp is None else torch.tensor([azp], dtype=torch.int32)
    torch.ops._C.static_scaled_int8_quant(out, x, torch.tensor([0.21]), zero)
    expected = ((x.float() / 0.21).round() + (azp or 0)).clamp(-128, 127)
    assert torch.equal(out.float(), expected)


@pytest.mark.parametrize("size", ODD_SIZES)
@pytest.mark.parametrize("shift", [0.0, 3.0, -400.0])
def test_dynamic_quant(
    size: int, shift: float, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x = (random(seeded, 6, size) * 5 + shift).to(dtype)
    codes, scales = torch.empty(6, size, dtype=torch.int8), torch.empty(6, 1)
    torch.ops._C.dynamic_scaled_int8_quant(codes, x, scales, None)
    expected = x.float().abs().amax(-1, keepdim=True) / 127
    assert torch.equal(scales, expected)
    assert torch.equal(codes.float(), (x.float() / expected).round().clamp(-128, 127))

    zeros = torch.empty(6, 1, dtype=torch.int32)
    torch.ops._C.dynamic_scaled_int8_quant(codes, x, scales, zeros)
    low, high = x.float().amin(-1, keepdim=True), x.float().amax(-1, keepdim=True)
    assert torch.equal(scales, (high - low) / 255)
    spread = scales > 0
    safe = torch.where(spread, scales, torch.ones(()))
    assert torch.equal(zeros, torch.where(spread, (-128 - low / safe).round(), 0.0).int())
    assert torch.equal(codes.float(), ((x.float() / safe).round() + zeros).clamp(-128, 127))


@contextmanager
def packed(weight: torch.Tensor, scales: torch.Tensor, azp: bool) -> Iterator[torch.Tensor]:
    """weight int8 [k, n]; the handle as the host keeps it."""
    handle = torch.ops._C.create_onednn_scaled_mm_handler(
        weight, scales, torch.bfloat16, True, azp, 32
    )
    yield torch.tensor(handle, dtype=torch.int64)
    torch.ops._C.release_dnnl_matmul_handler(handle)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (3, 17, 31), (9, 33, 300), (30, 64, 129)])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("zero", ["none", "token", "static"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scaled_mm(
    m: int,
    n: int,
    k: int,
    per_channel: bool,
    zero: str,
    with_bias: bool,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    """(codes - zero) times weight, exactly, then the scales and the bias in fp32."""
    a = torch.randint(-128, 128, (m, k), generator=seeded).to(torch.int8)
    b = torch.randint(-128, 128, (n, k), generator=seeded).to(torch.int8).t()
    b_scales = random(seeded, n if per_channel else 1).abs()
    a_scales = random(seeded, 1 if zero == "static" else m, 1).abs() / 500  # within fp16
    bias = random(seeded, n).to(dtype) if with_bias else None
    zeros = torch.randint(-128, 128, a_scales.shape, generator=seeded).int()
    adjust = (b.sum(0, keepdim=True, dtype=torch.float32) * b_scales).contiguous()
    used = zeros.double() if zero != "none" else 0.0
    exact = ((a.double() - used) @ b.double()) * a_scales.double() * b_scales.double()
    exact = exact + (0 if bias is None else bias.double())
    bound = (a.double().abs() + abs(used)) @ b.double().abs() * a_scales * b_scales
    for given in (None, adjust):
        out = guarded(m, n, dtype)
        with packed(b, b_scales, zero != "none") as handle:
            torch.ops._C.onednn_scaled_mm(
                out.rows, a, a_scales, None if zero == "none" else zeros, given, bias, handle
            )
        error = (out.rows.double() - exact).abs()
        unit = torch.finfo(dtype).eps / 2
        assert (error <= unit * exact.abs() + 1e-6 * (bound + 1)).all()
        out.assert_intact()


def test_scaled_mm_refuses_what_does_not_fit() -> None:
    weight, scales = torch.ones(8, 4, dtype=torch.int8), torch.ones(4)
    a, c, s = torch.ones(3, 8, dtype=torch.int8), torch.empty(3, 4), torch.ones(3, 1)
    mm = torch.ops._C.onednn_scaled_mm
    with packed(weight, scales, False) as handle:
        with pytest.raises(ValueError, match=r"output has shape \[3, 5\], expected \[3, 4\]"):
            mm(torch.empty(3, 5), a, s, None, None, None, handle)
        with pytest.raises(TypeError, match="activations have dtype Float, expected int8"):
            mm(c, a.float(), s, None, None, None, handle)
        with pytest.raises(ValueError, match="expected one, or one per row of 3"):
            mm(c, a, torch.ones(2, 1), None, None, None, handle)
        with pytest.raises(ValueError, match="packed without use_azp"):
            mm(c, a, s, torch.ones(3, 1, dtype=torch.int32), None, None, handle)
    with pytest.raises(ValueError, match="expected one, or one per column of 4"):
        torch.ops._C.create_onednn_scaled_mm_handler(
            weight, torch.ones(3), torch.float32, True, False, 32
        )
    with pytest.raises(ValueError, match=r"output has shape \[3, 7\]"):
        torch.ops._C.static_scaled_int8_quant(
            torch.empty(3, 7, dtype=torch.int8), torch.ones(3, 8), torch.ones(1), None
        )
    with pytest.raises(ValueError, match="expected one per row of 3"):
        torch.ops._C.dynamic_scaled_int8_quant(a, torch.ones(3, 8), torch.ones(2, 1), None)


@pytest.mark.parametrize("group", [(-1, -1), (-1, 1), (1, -1), (2, 3), (128, 128)])
def test_static_fp8_quant(
    group: tuple[int, int], dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Nearest e4m3 number of x / scale, saturated; a scale per tensor, row, column or block."""
    m, n = 6, 9
    x = (random(seeded, m, n) * 300).to(dtype)
    x[0, :4] = torch.tensor([1e30, -1e4, 1e-4, 0.0]).to(dtype)
    rows, columns = (size if g < 0 else g for g, size in zip(group, (m, n), strict=True))
    shape = (-(-m // rows), -(-n // columns))
    scale = random(seeded, *shape).abs() + 0.3
    spread = scale.repeat_interleave(rows, 0)[:m].repeat_interleave(columns, 1)[:, :n]
    out = torch.empty(m, n, dtype=torch.float8_e4m3fn)
    torch.ops._C.static_scaled_fp8_quant(out, x, scale, list(group))
    expected = (x.float() * (1 / spread)).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(out.float(), expected.float())
    if group == (-1, -1):
        torch.ops._C.static_scaled_fp8_quant(out, x, scale.view(()))
        assert torch.equal(out.float(), expected.float())


def as_fp8(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (x.float() * (1 / scales)).clamp(-448, 448).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("limit", [None, 2.0])
def test_dynamic_fp8_quant(
    limit: float | None, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """A scale per row or one for all; rows of the output below those of the input are padding."""
    m, n = 6, 33
    x = (random(seeded, m, n) * 3).to(dtype)
    x[2] = 0
    out, scales = torch.zeros(m + 2, n, dtype=torch.float8_e4m3fn), torch.full((m + 2, 1), 7.0)
    upper = None if limit is None else torch.tensor(limit)
    torch.ops._C.dynamic_per_token_scaled_fp8_quant(out, x, scales, upper)
    maxima = x.float().abs().amax(1, keepdim=True)
    expected = (maxima if limit is None else maxima.clamp(max=limit)) / 448
    expected[2] = 1 / (448 * 512)  # the smallest
    assert torch.equal(scales[:m], expected)
    assert (scales[m:] == 7).all()
    assert torch.equal(out[:m].float(), as_fp8(x, expected).float())
    assert (out[m:].float() == 0).all()
    scale = torch.empty(1)
    torch.ops._C.dynamic_scaled_fp8_quant(out, x, scale)
    assert torch.equal(scale, x.float().abs().max().view(1) / 448)
    assert torch.equal(out[:m].float(), as_fp8(x, scale).float())


def test_quantize_fp8e4m3_vec(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x = (random(seeded, 5, 33) * 3).to(dtype)
    codes, scales = torch.ops._C.quantize_fp8e4m3_vec(x, True, None)
    assert torch.equal(scales, x.float().abs().amax(1) / 448)
    assert torch.equal(codes.float(), as_fp8(x, scales[:, None]).float())
    given = torch.tensor([0.02])
    codes, scales = torch.ops._C.quantize_fp8e4m3_vec(x, False, given)
    assert torch.equal(scales, given)
    assert torch.equal(codes.float(), as_fp8(x, given).float())
    with pytest.raises(ValueError, match="expected one number"):
        torch.ops._C.quantize_fp8e4m3_vec(x, False, torch.ones(3))
    with pytest.raises(ValueError, match="expected one per row of 5"):
        torch.ops._C.quantize_fp8e4m3_vec(x, True, torch.ones(3))

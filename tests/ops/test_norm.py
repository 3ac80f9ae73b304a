"""RMS norms, the host's, Gemma's and those with a gate, and layer norms."""

from __future__ import annotations

import functools

import pytest
import torch

from cpu_backend import ops
from tests.ops.accuracy import ODD_SIZES, assert_accurate, check_op, guarded
from tests.reference.norm import gated_rms_norm, gemma_rms_norm, layer_norm, rms_norm

EPSILON = 1e-5
norm = functools.partial(rms_norm, epsilon=EPSILON)


def random(shape: tuple[int, ...], dtype: torch.dtype, seeded: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=seeded).to(dtype)


@pytest.mark.parametrize("hidden", ODD_SIZES)
@pytest.mark.parametrize("with_weight", [True, False], ids=["weight", "no weight"])
def test_rms_norm_matches_reference(
    hidden: int, with_weight: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x = guarded(5, hidden, dtype, 3 * random((5, hidden), dtype, seeded))
    weight = random((hidden,), dtype, seeded) if with_weight else None
    out = guarded(5, hidden, dtype)
    torch.ops._C.rms_norm(out.rows, x.rows, weight, EPSILON)
    assert_accurate(out.rows, norm, x.rows, weight)
    out.assert_intact()
    x.assert_intact()


@pytest.mark.parametrize("hidden", [2048, 2049])
def test_rms_norm_is_accurate_on_long_rows(
    hidden: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random((40, hidden), dtype, seeded), random((hidden,), dtype, seeded)
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, EPSILON)
    assert_accurate(out, norm, x, weight)


def test_rms_norm_uses_epsilon(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x, weight = random((3, 17), dtype, seeded), random((17,), dtype, seeded)
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, weight, 0.5)
    assert_accurate(out, functools.partial(rms_norm, epsilon=0.5), x, weight)


@pytest.mark.parametrize("hidden", ODD_SIZES)
@pytest.mark.parametrize("with_weight", [True, False], ids=["weight", "no weight"])
def test_fused_add_rms_norm_matches_reference(
    hidden: int, with_weight: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x = guarded(5, hidden, dtype, random((5, hidden), dtype, seeded))
    residual = guarded(5, hidden, dtype, random((5, hidden), dtype, seeded))
    weight = random((hidden,), dtype, seeded) if with_weight else None
    total = x.rows + residual.rows
    torch.ops._C.fused_add_rms_norm(x.rows, residual.rows, weight, EPSILON)
    assert torch.equal(residual.rows, total), "the sum is rounded once, as PyTorch rounds it"
    assert_accurate(x.rows, norm, total, weight)
    x.assert_intact()
    residual.assert_intact()


def test_rms_norm_works_in_place(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x, weight = random((6, 33), dtype, seeded), random((33,), dtype, seeded)
    apart = torch.empty_like(x)
    torch.ops._C.rms_norm(apart, x, weight, EPSILON)
    torch.ops._C.rms_norm(x, x, weight, EPSILON)
    assert torch.equal(x, apart)


def test_rms_norm_of_heads_in_a_merged_projection(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    qkv, weight = random((7, 6 * 24), dtype, seeded), random((24,), dtype, seeded)
    heads = qkv[:, 24 : 4 * 24].view(7, 3, 24)
    out = torch.empty(7, 3, 24, dtype=dtype)
    torch.ops._C.rms_norm(out, heads, weight, EPSILON)
    assert_accurate(out, norm, heads, weight)


# Layouts that models cut out of larger tensors: one of Gemma 3n's four predictions per token, a
# transposed matrix, a slice of a four-dimensional tensor.
LAYOUTS = {
    "inner stride": lambda x: x.view(6, 32, 4)[:, :, 1],
    "transposed": lambda x: x.view(32, 24).T,
    "four dimensions": lambda x: x.view(2, 3, 4, 32)[:, :, 1:3].transpose(1, 2),
    "inner stride in heads": lambda x: x.view(2, 3, 32, 4)[..., 2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_norms_take_any_strides(layout: str, dtype: torch.dtype, seeded: torch.Generator) -> None:
    storage = random((768,), dtype, seeded)
    x = LAYOUTS[layout](storage)
    weight = random((x.shape[-1],), dtype, seeded)
    out, dense = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape, dtype=dtype)
    torch.ops._C.rms_norm(dense, x.contiguous(), weight, EPSILON)
    torch.ops._C.rms_norm(out, x, weight, EPSILON)
    assert torch.equal(out, dense)

    residual = LAYOUTS[layout](random((768,), dtype, seeded))
    expected = x.contiguous(), residual.contiguous()
    torch.ops._C.fused_add_rms_norm(*expected, weight, EPSILON)
    before = storage.clone()
    torch.ops._C.fused_add_rms_norm(x, residual, weight, EPSILON)
    assert torch.equal(x, expected[0])
    assert torch.equal(residual, expected[1])
    LAYOUTS[layout](before).copy_(x)
    assert torch.equal(storage, before), "nothing beside the rows is written"


def test_rms_norm_keeps_rows_independent(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x, weight = random((200, 257), dtype, seeded), random((257,), dtype, seeded)
    together, alone = torch.empty_like(x), torch.empty_like(x)
    torch.ops._C.rms_norm(together, x, weight, EPSILON)
    for row in range(len(x)):
        torch.ops._C.rms_norm(alone[row : row + 1], x[row : row + 1], weight, EPSILON)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("shape", [(0, 64), (0, 3, 64)])
def test_norms_accept_no_tokens(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual = torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype)
    torch.ops._C.rms_norm(torch.empty_like(x), x, torch.ones(64, dtype=dtype), EPSILON)
    torch.ops._C.fused_add_rms_norm(x, residual, torch.ones(64, dtype=dtype), EPSILON)


def test_norms_refuse_what_they_cannot_do() -> None:
    x, weight = torch.ones(2, 8), torch.ones(8)
    rms_norm_op, fused = torch.ops._C.rms_norm, torch.ops._C.fused_add_rms_norm
    with pytest.raises(TypeError, match="weight has dtype BFloat16 but input has Float"):
        rms_norm_op(torch.empty_like(x), x, weight.bfloat16(), EPSILON)
    with pytest.raises(TypeError, match="out has dtype Half but input has Float"):
        rms_norm_op(x.half(), x, weight, EPSILON)
    with pytest.raises(TypeError, match="supported are float32, bfloat16 and float16"):
        rms_norm_op(x.double(), x.double(), None, EPSILON)
    with pytest.raises(ValueError, match=r"weight has shape \[7\], expected \[8\]"):
        rms_norm_op(torch.empty_like(x), x, torch.ones(7), EPSILON)
    with pytest.raises(ValueError, match="out must be dense in its last dimension"):
        rms_norm_op(x.T, torch.ones(8, 2), None, EPSILON)
    with pytest.raises(ValueError, match="residual has shape"):
        fused(x, torch.ones(3, 8), weight, EPSILON)


@pytest.mark.parametrize("hidden", ODD_SIZES)
def test_gemma_rms_norm_matches_reference(
    hidden: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random((5, hidden), dtype, seeded), random((hidden,), dtype, seeded)
    gemma = functools.partial(gemma_rms_norm, epsilon=EPSILON)
    assert_accurate(ops.gemma_rms_norm(x, weight, EPSILON), gemma, x, weight)

    residual = random((5, hidden), dtype, seeded)
    total = x + residual
    ops.fused_add_gemma_rms_norm(x, residual, weight, EPSILON)
    assert torch.equal(residual, total)
    assert_accurate(x, gemma, total, weight)


@pytest.mark.parametrize("act", ["silu", "sigmoid"])
@pytest.mark.parametrize("gate_first", [True, False], ids=["gate first", "norm first"])
@pytest.mark.parametrize("shared", [True, False], ids=["one weight", "weights of heads"])
@pytest.mark.parametrize("channels", [1, 24, 128, 131])
def test_gated_rms_norm_matches_reference(
    channels: int,
    shared: bool,
    gate_first: bool,
    act: str,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    """Gate and input are cut out of merged projections, as models have them."""
    merged = random((7, 9 * channels), dtype, seeded)
    x = merged[:, : 3 * channels].unflatten(1, (3, channels))
    gate = 2 * merged[:, 5 * channels : 8 * channels].unflatten(1, (3, channels))
    weight = random((channels,) if shared else (3, channels), dtype, seeded)
    gated = functools.partial(gated_rms_norm, epsilon=EPSILON, gate_first=gate_first, act=act)
    out = ops.gated_rms_norm(x, gate, weight.flatten(), EPSILON, gate_first=gate_first, act=act)
    assert_accurate(out, gated, x, gate, weight)
    for token in range(7):
        alone = ops.gated_rms_norm(
            x[token : token + 1],
            gate[token : token + 1],
            weight.flatten(),
            EPSILON,
            gate_first=gate_first,
            act=act,
        )
        assert torch.equal(alone[0], out[token])


def test_gated_rms_norm_refuses_what_it_cannot_do() -> None:
    x, weight = torch.ones(2, 3, 8), torch.ones(8)

    def gated(gate: torch.Tensor, weight: torch.Tensor, act: str = "silu") -> torch.Tensor:
        return ops.gated_rms_norm(x, gate, weight, EPSILON, gate_first=True, act=act)

    with pytest.raises(ValueError, match="gate has shape"):
        gated(x[:, :2], weight)
    with pytest.raises(TypeError, match="gate has dtype Half but input has Float"):
        gated(x.half(), weight)
    with pytest.raises(ValueError, match="weight has shape"):
        gated(x, weight[:7])
    with pytest.raises(ValueError, match="silu or sigmoid, not through gelu"):
        gated(x, weight, "gelu")


layer = functools.partial(layer_norm, epsilon=EPSILON)


@pytest.mark.parametrize("hidden", [*ODD_SIZES, 384, 2049])
@pytest.mark.parametrize("with_weight", [True, False], ids=["weight", "no weight"])
@pytest.mark.parametrize("with_residual", [True, False], ids=["residual", "alone"])
def test_layer_norm_matches_reference(
    hidden: int,
    with_weight: bool,
    with_residual: bool,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    x = guarded(5, hidden, dtype, 2 + random((5, hidden), dtype, seeded))
    residual = guarded(5, hidden, dtype, random((5, hidden), dtype, seeded))
    weight, bias = (
        random((hidden,), dtype, seeded) if with_weight else None for _ in ("weight", "bias")
    )
    out = guarded(5, hidden, dtype)
    added = residual.rows if with_residual else None
    before, kept = x.rows.clone(), residual.rows.clone()
    torch.ops.cpu_backend.layer_norm(out.rows, x.rows, added, weight, bias, EPSILON)
    total = x.rows + residual.rows if with_residual else x.rows
    assert_accurate(out.rows, layer, total, weight, bias)
    out.assert_intact()
    assert torch.equal(x.rows, before)
    assert torch.equal(residual.rows, kept)
    # The sum is rounded to its dtype first: the same bits as of the sum that PyTorch makes.
    assert torch.equal(ops.layer_norm(total, None, weight, bias, EPSILON), out.rows)


def test_layer_norm_of_numbers_far_from_zero(dtype: torch.dtype, seeded: torch.Generator) -> None:
    """The variance is 1 or so and the mean's square 10^6 times that; of bf16, 64 and 4,096."""
    x = (1000 if dtype != torch.bfloat16 else 64) + random((4, 133), dtype, seeded)
    x = x.to(dtype)
    assert_accurate(ops.layer_norm(x, None, None, None, EPSILON), layer, x, None, None)


def test_layer_norm_works_in_place_and_keeps_rows_independent(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random((200, 257), dtype, seeded), random((257,), dtype, seeded)
    together = ops.layer_norm(x, x, weight, weight, EPSILON)
    for row in (0, 1, 77, 199):
        assert torch.equal(ops.layer_norm(x[row], x[row], weight, weight, EPSILON), together[row])
    torch.ops.cpu_backend.layer_norm(x, x, x, weight, weight, EPSILON)
    assert torch.equal(x, together)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layer_norm_takes_any_strides(
    layout: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, residual = (LAYOUTS[layout](random((768,), dtype, seeded)) for _ in range(2))
    dense = ops.layer_norm(x.contiguous(), residual.contiguous(), None, None, EPSILON)
    assert torch.equal(ops.layer_norm(x, residual, None, None, EPSILON), dense)


def test_layer_norm_passes_opcheck(dtype: torch.dtype, seeded: torch.Generator) -> None:
    x, weight = random((3, 17), dtype, seeded), random((17,), dtype, seeded)
    arguments = (torch.empty_like(x), x, x, weight, weight, EPSILON)
    check_op(torch.ops.cpu_backend.layer_norm.default, arguments)


def test_layer_norm_refuses_what_does_not_fit() -> None:
    x = torch.ones(3, 8)
    with pytest.raises(ValueError, match=r"bias has shape \[7\], expected \[8\]"):
        ops.layer_norm(x, None, None, torch.ones(7), EPSILON)
    with pytest.raises(TypeError, match="weight has dtype Half but input has Float"):
        ops.layer_norm(x, None, torch.ones(8).half(), None, EPSILON)
    with pytest.raises(ValueError, match=r"residual has shape \[2, 8\], expected \[3, 8\]"):
        ops.layer_norm(x, torch.ones(2, 8), None, None, EPSILON)

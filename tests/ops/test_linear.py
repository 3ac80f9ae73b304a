"""Linear layers, under the host's names and as this backend's own op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from cpu_backend.layers.linear import pack_plain
from cpu_backend.ops import PackedLinear
from tests.ops.accuracy import assert_accurate, check_op, guarded
from tests.reference.linear import linear

# [tokens, out_features, in_features]: around lanes, panels, register tiles and chains of 128; the
# last two of rows that lie a multiple of 4 KiB apart and are copied.
SHAPES = [
    (1, 1, 1), (1, 8, 3), (2, 17, 5), (3, 15, 16), (5, 16, 17), (6, 31, 33), (7, 33, 31),
    (11, 63, 127), (12, 65, 128), (13, 127, 129), (25, 129, 96), (1, 255, 511), (1, 257, 513),
    (64, 48, 1537), (9, 33, 2048), (25, 17, 4096),
]  # fmt: skip


def random(dtype: torch.dtype, seeded: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded).to(dtype)


@contextmanager
def packed_by_host(weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """The handle as the host keeps it: a tensor of one int64."""
    handle = torch.ops._C.create_onednn_mm_handler(weight.t(), 32)
    yield torch.tensor([handle], dtype=torch.int64)
    torch.ops._C.release_dnnl_matmul_handler(handle)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_onednn_mm_matches_reference(
    m: int, n: int, k: int, with_bias: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x = guarded(m, k, dtype, random(dtype, seeded, m, k))
    out = guarded(m, n, dtype)
    weight, bias = random(dtype, seeded, n, k), random(dtype, seeded, n) if with_bias else None
    with packed_by_host(weight) as handle:
        torch.ops._C.onednn_mm(out.rows, x.rows, bias, handle)
    assert_accurate(out.rows, linear, x.rows, weight, bias)
    out.assert_intact()


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("float_output", [False, True], ids=["same output", "float output"])
def test_linear_matches_reference(
    m: int, n: int, k: int, float_output: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random(dtype, seeded, m, k), random(dtype, seeded, n, k)
    bias = random(dtype, seeded, n)
    out = PackedLinear(weight, float_output)(x, None, bias)
    assert out.dtype == (torch.float32 if float_output else dtype)
    assert_accurate(out, linear, x, weight, bias)


def test_linear_packs_any_strides_and_needs_the_weight_no_more(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, transposed = random(dtype, seeded, 4, 21), random(dtype, seeded, 21, 35)
    layer = PackedLinear(transposed.t())
    kept = transposed.clone()
    transposed.fill_(float("nan"))
    assert_accurate(layer(x), linear, x, kept.t())


@pytest.mark.parametrize(
    "shape", [(2, 3, 21), (21,), (1, 1, 1, 21), (0, 21), (0, 2, 21), (2, 0, 21)]
)
def test_linear_accepts_any_leading_dimensions(
    shape: tuple[int, ...], dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight = random(dtype, seeded, *shape), random(dtype, seeded, 19, 21)
    out = PackedLinear(weight)(x)
    assert out.shape == (*shape[:-1], 19)
    assert_accurate(out, linear, x, weight)


def test_linear_accepts_any_strides(dtype: torch.dtype, seeded: torch.Generator) -> None:
    weight = random(dtype, seeded, 19, 21)
    for x in (
        random(dtype, seeded, 3, 4, 50)[:, 1:3, 5:26],
        random(dtype, seeded, 21, 5).T,
        random(dtype, seeded, 5, 21, 4)[..., 2],
        random(dtype, seeded, 2, 5, 21, 4)[..., 2],
        random(dtype, seeded, 13, 4096)[:, 7:28],
    ):
        assert_accurate(PackedLinear(weight)(x), linear, x, weight)


@pytest.mark.parametrize(("n", "k"), [(33, 50), (200, 300), (33, 2048)])
def test_linear_result_of_a_row_does_not_depend_on_its_batch(
    n: int, k: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, layer = random(dtype, seeded, 40, k), PackedLinear(random(dtype, seeded, n, k))
    together = layer(x)
    for size in (1, 2, 5, 6, 7, 13):
        for start in range(0, 40 - size, 3):
            rows = slice(start, start + size)
            assert torch.equal(layer(x[rows]), together[rows])


def test_linear_result_does_not_depend_on_threads(
    dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    layer = PackedLinear(random(dtype, seeded, 130, 400))
    for m in (1, 29):
        x, results = random(dtype, seeded, m, 400), []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(layer(x))
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_linear_spreads_long_inputs_over_items(seeded: torch.Generator) -> None:
    """More rows than one item takes at this depth, so items split by rows and by panels."""
    x, weight = torch.randn(100, 4000, generator=seeded), torch.randn(50, 4000, generator=seeded)
    assert_accurate(PackedLinear(weight)(x), linear, x, weight)


@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (100, 50, 4000)])
def test_linear_add_is_the_two_steps(
    m: int, n: int, k: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight, bias = (random(dtype, seeded, *shape) for shape in ((m, k), (n, k), (n,)))
    residual = guarded(m, n, dtype, random(dtype, seeded, m, n))
    layer = PackedLinear(weight)
    expected = residual.rows + layer(x, None, bias)
    layer.add_to(residual.rows, x, bias)
    assert torch.equal(residual.rows, expected)
    residual.assert_intact()


@pytest.mark.parametrize(("m", "n", "k"), [(m, n * 2, k) for m, n, k in SHAPES])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_linear_act_and_mul_is_the_two_steps(
    m: int, n: int, k: int, activation: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight, bias = (random(dtype, seeded, *shape) for shape in ((m, k), (n, k), (n,)))
    layer, out = PackedLinear(weight, parts=2), guarded(m, n // 2, dtype)
    expected = torch.empty(m, n // 2, dtype=dtype)
    getattr(torch.ops._C, f"{activation}_and_mul")(expected, layer(x, None, bias))
    layer.act_and_mul(out.rows, x, activation, bias)
    # In fp32 the compiler may contract the two copies of an activation differently.
    slack = 2.0**-21 if dtype == torch.float32 else 0.0
    torch.testing.assert_close(out.rows, expected, rtol=slack, atol=0.0)
    out.assert_intact()


@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (100, 50, 4000)])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "gelu_quick", "relu2"])
def test_linear_act_is_the_two_steps(
    m: int, n: int, k: int, activation: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x, weight, bias = (random(dtype, seeded, *shape) for shape in ((m, k), (n, k), (n,)))
    layer, out = PackedLinear(weight), guarded(m, n, dtype)
    layer.act(out.rows, x, activation, bias)
    projected = layer(x, None, bias)
    expected = torch.empty_like(projected)
    if activation == "silu":
        expected = torch.nn.functional.silu(projected)
    elif activation == "gelu":
        expected = torch.nn.functional.gelu(projected)
    elif activation == "relu2":
        expected = torch.relu(projected).square()
    else:
        getattr(torch.ops._C, activation)(expected, projected)
    assert torch.equal(out.rows, expected)
    out.assert_intact()


def test_linear_packed_in_parts_gives_the_same_result(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    for m, half in ((1, 5), (2, 100), (9, 33)):
        x, weight = random(dtype, seeded, m, 21), random(dtype, seeded, 2 * half, 21)
        assert torch.equal(PackedLinear(weight, parts=2)(x), PackedLinear(weight)(x))


def test_linear_epilogues_accept_leading_dimensions(seeded: torch.Generator) -> None:
    x, layer = torch.randn(2, 3, 21, generator=seeded), PackedLinear(torch.ones(8, 21), parts=2)
    residual, out = torch.zeros(2, 3, 8), torch.empty(2, 3, 4)
    layer.add_to(residual, x)
    assert torch.equal(residual, layer(x))
    layer.act_and_mul(out, x, "silu")
    assert out.shape == (2, 3, 4)
    layer.act(residual, x, "silu")
    assert torch.equal(residual, torch.nn.functional.silu(layer(x)))


def test_linear_epilogues_pass_opcheck(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = PackedLinear(random(dtype, seeded, 18, 33), parts=2)
    x, bias = random(dtype, seeded, 5, 33), random(dtype, seeded, 18)
    add, act = torch.ops.cpu_backend.linear_add, torch.ops.cpu_backend.linear_act_and_mul
    residual, out = random(dtype, seeded, 5, 18), random(dtype, seeded, 5, 9)
    check_op(add.default, (residual, x, layer._handle, bias))
    check_op(act.default, (out, x, layer._handle, None, "silu"))
    plain = torch.ops.cpu_backend.linear_act.default
    check_op(plain, (residual, x, layer._handle, bias, "gelu"))


def test_linear_epilogues_refuse_what_does_not_fit() -> None:
    layer, x = PackedLinear(torch.ones(4, 8)), torch.ones(3, 8)
    with pytest.raises(ValueError, match="packed in 2 parts to have its halves multiplied"):
        layer.act_and_mul(torch.empty(3, 2), x, "silu")
    halves = PackedLinear(torch.ones(4, 8), parts=2)
    with pytest.raises(ValueError, match=r"output has shape \[3, 4\], expected \[3, 2\]"):
        halves.act_and_mul(torch.empty(3, 4), x, "silu")
    with pytest.raises(ValueError, match="activation 'relu' is unknown: silu, gelu"):
        halves.act_and_mul(torch.empty(3, 2), x, "relu")
    with pytest.raises(ValueError, match="swigluoai takes a gate and a projection"):
        layer.act(torch.empty(3, 4), x, "swigluoai")
    with pytest.raises(ValueError, match="relu2 is not there with a gate: call linear_act"):
        halves.act_and_mul(torch.empty(3, 2), x, "relu2")
    with pytest.raises(ValueError, match=r"output has shape \[3, 2\], expected \[3, 4\]"):
        layer.act(torch.empty(3, 2), x, "silu")
    with pytest.raises(TypeError, match="residual has dtype Half but input has Float"):
        layer.add_to(torch.empty(3, 4).half(), x)
    with pytest.raises(ValueError, match="5 output features cannot be packed in 2 equal parts"):
        PackedLinear(torch.ones(5, 8), parts=2)


def test_linear_passes_opcheck(dtype: torch.dtype, seeded: torch.Generator) -> None:
    layer = PackedLinear(random(dtype, seeded, 17, 33))
    for x in (random(dtype, seeded, 5, 33), random(dtype, seeded, 2, 3, 33)):
        for bias in (None, random(dtype, seeded, 17)):
            for float_output in (False, True):
                arguments = (x, layer._handle, 17, bias, float_output)
                check_op(torch.ops.cpu_backend.linear.default, arguments)


def test_linear_refuses_what_does_not_fit() -> None:
    layer, x = PackedLinear(torch.ones(4, 8)), torch.ones(3, 8)
    with pytest.raises(
        TypeError, match="activations have dtype BFloat16 but the weight was packed"
    ):
        layer(x.bfloat16())
    with pytest.raises(TypeError, match="bias has dtype Half but input has Float"):
        layer(x, None, torch.ones(4).half())
    with pytest.raises(ValueError, match=r"bias has shape \[5\], expected \[4\]"):
        layer(x, None, torch.ones(5))
    with pytest.raises(ValueError, match=r"the weight needs \[tokens, 8\]"):
        layer(torch.ones(3, 7))
    with pytest.raises(ValueError, match="no packed weight"):
        torch.ops.cpu_backend.linear(x, 0, 4, None, False)
    with pytest.raises(ValueError, match="4 output features, not 5"):
        torch.ops.cpu_backend.linear(x, layer._handle, 5, None, False)
    with pytest.raises(TypeError, match="weight has dtype Double"):
        PackedLinear(torch.ones(4, 8).double())
    with pytest.raises(ValueError, match="must be a matrix"):
        torch.ops._C.create_onednn_mm_handler(torch.ones(4), 0)
    with pytest.raises(ValueError, match="must have rows and columns"):
        PackedLinear(torch.ones(4, 0))


def test_onednn_mm_refuses_a_wrong_output() -> None:
    with packed_by_host(torch.ones(4, 8)) as handle:
        with pytest.raises(ValueError, match=r"output has shape \[3, 5\], expected \[3, 4\]"):
            torch.ops._C.onednn_mm(torch.empty(3, 5), torch.ones(3, 8), None, handle)
        with pytest.raises(TypeError, match="output has dtype Half but input has Float"):
            torch.ops._C.onednn_mm(torch.empty(3, 4).half(), torch.ones(3, 8), None, handle)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (15, 7), (16, 8), (17, 9), (33, 129), (300, 64)])
def test_rows_of_a_packed_weight_are_its_embeddings(
    n: int, k: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    weight = random(dtype, seeded, n, k)
    packed = PackedLinear(weight)
    ids = torch.randint(0, n, (3, 5), generator=seeded)
    assert torch.equal(packed.rows(ids), weight[ids])
    everything = torch.arange(n)
    assert torch.equal(packed.rows(everything), weight)
    assert packed.rows(everything[:0]).shape == (0, k)


def test_rows_outside_the_vocabulary_are_refused() -> None:
    packed = PackedLinear(torch.zeros(5, 4))
    for bad in (-1, 5):
        with pytest.raises(IndexError, match=f"token id {bad} is outside the vocabulary of 5"):
            packed.rows(torch.tensor([0, bad]))
    with pytest.raises(TypeError, match="ids has dtype"):
        packed.rows(torch.tensor([1], dtype=torch.int32))


def test_plain_linear_modules_multiply_each_row_alike(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(96, 5), torch.nn.Linear(5, 3, bias=False)).to(dtype)
    x = random(dtype, seeded, 16, 96)
    expected = model(x)
    pack_plain(model)
    together = model(x)
    torch.testing.assert_close(together, expected)
    for row in range(16):
        assert torch.equal(model(x[row]), together[row])
        assert torch.equal(model(x[row : row + 1]), together[row : row + 1])

"""Elementwise functions of torch: an element's bits depend on its value and on nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as nn

from tests.ops.accuracy import assert_accurate
from tests.ops.test_step_recording import record, replay_over_garbage
from tests.reference import activation

Function = Callable[[torch.Tensor], torch.Tensor]

# Those that torch computes by other instructions where its vectors are not full.
REPLACED: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu tanh": lambda x: nn.gelu(x, approximate="tanh"),
    "mish": nn.mish,
    "exp2": torch.exp2,
    "rsqrt": lambda x: torch.rsqrt(x.abs()),
    "softplus": nn.softplus,
    "elu": nn.elu,
    "celu": nn.celu,
    "selu": nn.selu,
    "power": lambda x: x.abs() ** 1.3,
    "root": lambda x: x.abs() ** -0.5,
}
# The others that a recorded step may hold: torch's own, as long as this test passes.
TORCH: dict[str, Function] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "reciprocal", "relu"),
            *("round", "sign", "sin", "square", "tanh"),
        )
    },
    "hardswish": nn.hardswish,
    "hardsigmoid": nn.hardsigmoid,
    "leaky_relu": nn.leaky_relu,
    "relu6": nn.relu6,
    "logsigmoid": nn.logsigmoid,
    "cube": lambda x: x**3,
    "scaled": lambda x: x * 1.7 + 0.3,
    "clamp": lambda x: x.clamp(-0.5, 1.5),
    "lerp": lambda x: torch.lerp(x, x * x, 0.3),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "layer_norm": lambda x: nn.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: nn.rms_norm(x, x.shape[-1:]),
}
OF_POSITIVE = [torch.log, torch.log2, torch.log10, torch.log1p, torch.sqrt]
TORCH |= {f.__name__: lambda x, f=f: f(x.abs()) for f in OF_POSITIVE}  # type: ignore[misc]
ALL = REPLACED | TORCH
# Computed by this project's kernel.
EXACT: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "silu": activation.silu,
    "gelu": activation.gelu,
    "gelu tanh": activation.gelu_tanh,
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [1, 7, 129])
def test_row_has_the_same_bits_in_any_batch(
    name: str, width: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Alone, after others, before others, strided and dense."""
    function = ALL[name]
    rows = 19
    x = (3 * torch.randn(rows, 2 * width, generator=seeded)).to(dtype)[:, width:]
    together = function(x)
    assert torch.equal(function(x.contiguous()), together)
    for row in range(rows):
        assert torch.equal(function(x[row : row + 1])[0], together[row])
        assert torch.equal(function(x[row:])[0], together[row])


@pytest.mark.parametrize("name", REPLACED)
def test_threads_share_a_long_one(
    name: str, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    x = (3 * torch.randn(100_003, generator=seeded)).to(dtype)
    torch.set_num_threads(1)
    expected = REPLACED[name](x)
    for count in (2, 3, 7):
        torch.set_num_threads(count)
        assert torch.equal(REPLACED[name](x), expected)
        assert torch.equal(REPLACED[name](x[50_001:]), expected[50_001:])


@pytest.mark.parametrize("name", EXACT)
def test_own_ones_are_accurate(name: str, dtype: torch.dtype) -> None:
    for low, high in [(-4.0, 4.0), (-1e-3, 1e-3), (-12.0, -8.0), (8.0, 100.0)]:
        x = torch.linspace(low, high, 1001).to(dtype)
        assert_accurate(ALL[name](x), EXACT[name], x)


@pytest.mark.parametrize("name", [name for name in REPLACED if name not in EXACT])
def test_the_others_are_as_exact_as_torch(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 1001).to(dtype)
    exact = REPLACED[name](x.double())
    torch.testing.assert_close(REPLACED[name](x), exact.to(dtype))


FORMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "sigmoid": (torch.sigmoid, torch.Tensor.sigmoid_),
    "silu": (torch.ops.aten.silu, torch.ops.aten.silu_),
    "gelu": (torch.ops.aten.gelu, torch.ops.aten.gelu_),
    "mish": (torch.ops.aten.mish, torch.ops.aten.mish_),
    "exp2": (torch.exp2, torch.Tensor.exp2_),
    "rsqrt": (torch.rsqrt, torch.Tensor.rsqrt_),
    "elu": (torch.ops.aten.elu, torch.ops.aten.elu_),
    "pow": (lambda x, **out: torch.pow(x, 0.3, **out), lambda x: x.pow_(0.3)),
}


@pytest.mark.parametrize("name", FORMS)
def test_all_forms_give_the_same(name: str, dtype: torch.dtype, seeded: torch.Generator) -> None:
    fresh, in_place = FORMS[name]
    x = torch.rand(5, 33, generator=seeded).to(dtype)
    expected = fresh(x)
    assert expected.dtype == dtype
    for y in (torch.empty(5, 33, dtype=dtype), torch.empty(33, 5, dtype=dtype).T):
        assert torch.equal(fresh(x, out=y), expected)
        assert torch.equal(y, expected)
    resized = torch.empty(0, dtype=dtype)
    assert torch.equal(fresh(x, out=resized), expected)
    for z in (x.clone(), x.T.contiguous().T, x.repeat(1, 2)[:, 33:]):
        in_place(z)
        assert torch.equal(z, expected)
    assert fresh(x[:0]).shape == (0, 33)


@pytest.mark.parametrize("name", FORMS)
def test_other_types_stay_torchs(name: str) -> None:
    fresh, _ = FORMS[name]
    x = torch.linspace(0.1, 2, 11).double()
    assert fresh(x).dtype == torch.float64
    torch.testing.assert_close(fresh(x), fresh(x.float()).double(), rtol=1e-5, atol=1e-6)


def test_nan_and_infinity(dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0], dtype=dtype)
    for name, expected in {"sigmoid": [1.0, 0.0, 0.5], "rsqrt": [0.0, 0.0, float("inf")]}.items():
        got = REPLACED[name](x)
        assert got[0].isnan()
        assert got[1:].tolist() == expected


def test_gradients_are_torchs() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float32, requires_grad=True)
    for function in (torch.sigmoid, nn.silu, nn.gelu):
        (gradient,) = torch.autograd.grad(function(x).sum(), x)
        (exact,) = torch.autograd.grad(function(x.double()).sum(), x)
        torch.testing.assert_close(gradient, exact)


def test_loading_says_nothing() -> None:
    code = "from cpu_backend import ops; ops.load()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


LIES: dict[str, Function] = {
    "dense": lambda x: x,
    "half of a row": lambda x: x.chunk(2, -1)[0],
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, ::3],
}


@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize("name", REPLACED)
def test_it_is_recorded_wherever_it_lies(
    name: str, lies: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    x = torch.randn(9, 66, generator=seeded).to(dtype)
    recording = record(lambda: REPLACED[name](LIES[lies](x)), memory=[x])
    x.copy_(torch.randn(9, 66, generator=seeded))
    assert torch.equal(replay_over_garbage(recording), REPLACED[name](LIES[lies](x)))


def test_it_is_recorded_into_a_part_of_a_tensor(seeded: torch.Generator) -> None:
    x = torch.randn(9, 33, generator=seeded)

    def into_half() -> torch.Tensor:
        both = torch.zeros(9, 66)
        torch.sigmoid(x, out=both[:, 33:])
        return both

    recording = record(into_half, memory=[x])
    x.copy_(torch.randn(9, 33, generator=seeded))
    assert torch.equal(replay_over_garbage(recording), into_half())


def test_a_result_of_another_type_refuses_the_recording(seeded: torch.Generator) -> None:
    x = torch.randn(9, 33, generator=seeded).bfloat16()
    recording = record(lambda: torch.sigmoid(x, out=torch.empty(9, 33)), memory=[x])
    assert "an elementwise function of a type" in recording.error

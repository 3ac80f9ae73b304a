"""Every provider's layers against plain torch: the same tests for all of them.

Those of Intel Extension for PyTorch run in an environment of its own: ``make ipex-test``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from cpu_backend import ops
from cpu_backend.ops import Activations, Codes, GroupScales
from cpu_backend.providers import Matrix, Provider, Unsupported
from cpu_backend.providers.choice import KNOWN, load
from tests.reference.activation import relu2
from tests.tools import TOOLS

SHAPES = [(1, 64, 96), (3, 160, 64), (17, 96, 224)]  # [tokens, out_features, in_features]
OF_PACKAGES = [pytest.param(n, marks=pytest.mark.needs(n)) if n in TOOLS else n for n in KNOWN]


@pytest.fixture(params=OF_PACKAGES)
def provider(request: pytest.FixtureRequest) -> Provider:
    """Each that can be loaded here."""
    ops.load()
    return load(request.param)


@contextmanager
def where_supported(provider: Provider) -> Iterator[None]:
    """A provider may say that it does not have something; native has everything."""
    try:
        yield
    except Unsupported as error:
        if provider.name == "native" or not str(error).startswith(("does not ", "has ")):
            raise
        pytest.skip(f"{provider.name} {error}")


def assert_close(result: Tensor, exact: Tensor, rounds: int = 1) -> None:
    """Within ``rounds`` roundings to the dtype of the result, in relation to the largest."""
    assert result.shape == exact.shape
    error = (result.double() - exact).abs().max()
    floor = 4e-6 if result.dtype == torch.float32 else 0.0
    bound = max(rounds * torch.finfo(result.dtype).eps, floor) * exact.abs().max()
    assert error <= bound, f"{error:.2e} > {bound:.2e}"


def random(seeded: torch.Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded).to(dtype)


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_linear(
    provider: Provider,
    m: int,
    n: int,
    k: int,
    with_bias: bool,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    x, weight = random(seeded, dtype, m, k), random(seeded, dtype, n, k)
    bias = random(seeded, dtype, n) if with_bias else None
    with where_supported(provider):
        layer = provider.linear(weight)
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    assert layer.out_features == n
    assert layer.nbytes >= weight.nbytes
    weight.zero_()  # the layer has a copy, or has no need of it
    assert_close(layer(x, None, bias), exact, 2)
    activated = torch.empty(m, n, dtype=dtype)
    layer.act(activated, x, "gelu", bias)
    assert_close(activated, torch.nn.functional.gelu(exact), 4)
    residual = random(seeded, dtype, m, n)
    exact += residual.double()
    layer.add_to(residual, x, bias)
    assert_close(residual, exact, 3)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
def test_merged_projections_activate(
    provider: Provider,
    activation: str,
    with_bias: bool,
    dtype: torch.dtype,
    seeded: torch.Generator,
) -> None:
    x, weight = random(seeded, dtype, 5, 96), random(seeded, dtype, 2 * 80, 96) / 10
    bias = random(seeded, dtype, 2 * 80) if with_bias else None
    with where_supported(provider):
        layer = provider.linear(weight, parts=2)
    assert layer.parts == 2
    exact = torch.nn.functional.linear(
        x.double(), weight.double(), None if bias is None else bias.double()
    )
    assert_close(layer(x, None, bias), exact, 2)
    out = torch.empty(5, 80, dtype=dtype)
    layer.act_and_mul(out, x, activation, bias)
    assert_close(out, gated(activation, exact), 6)


def gated(activation: str, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda g: torch.nn.functional.gelu(g, approximate="tanh"),
    }
    return functions[activation](gate) * up


@pytest.mark.parametrize("kind", ["int16", "int8_token"])
@pytest.mark.parametrize(
    ("bits", "group"), [(2, 32), (3, 128), (4, 32), (4, 128), (8, 256), (8, 64)]
)
@pytest.mark.parametrize("zeros", ["none", "point"])
def test_quantized_linear(
    provider: Provider,
    kind: str,
    bits: int,
    group: int,
    zeros: str,
    seeded: torch.Generator,
) -> None:
    n, k = 64, 256
    codes = torch.randint(0, 2**bits, (n, k), generator=seeded, dtype=torch.uint8)
    scales = torch.rand(k // group, n, generator=seeded) / 100 + 0.001
    points = None
    if zeros == "point":
        points = torch.randint(0, 2**bits, scales.shape, generator=seeded).float()
    matrix = Matrix(
        Codes(codes, "bytes", bits), GroupScales(scales, group, points), k, Activations(kind)
    )
    if provider.name == "native" and kind == "int8_token" and points is not None:
        pytest.skip("no checkpoint has it")
    with where_supported(provider):
        layer = provider.quantized(matrix, torch.bfloat16)
    middle = torch.full_like(scales, 2 ** (bits - 1)) if points is None else points
    weight = codes.view(n, -1, group).double() - middle.t()[..., None].double()
    weight = (weight * scales.t()[..., None].double()).reshape(n, k)
    x, bias = random(seeded, torch.bfloat16, 7, k), random(seeded, torch.bfloat16, n)
    exact = x.double() @ weight.t() + bias.double()
    # 8-bit activations: half a step of 1/127 of the largest, times the root of 256 channels.
    assert_close(layer(x, None, bias), exact, 3 if kind == "int16" else 12)


def test_a_weight_in_freed_memory_is_multiplied_with_its_own_groups(
    provider: Provider, seeded: torch.Generator
) -> None:
    """A library that knows weights by their address knows the first one's groups."""
    n, k = 64, 256
    x = random(seeded, torch.bfloat16, 7, k)
    for round in range(8):
        group = (32, 128)[round % 2]
        codes = torch.randint(0, 16, (n, k), generator=seeded, dtype=torch.uint8)
        scales = torch.rand(k // group, n, generator=seeded) / 100 + 0.001
        matrix = Matrix(Codes(codes, "bytes", 4), GroupScales(scales, group), k, Activations())
        with where_supported(provider):
            layer = provider.quantized(matrix, torch.bfloat16)
        weight = (codes.view(n, -1, group).double() - 8) * scales.t()[..., None].double()
        assert_close(layer(x), x.double() @ weight.reshape(n, k).t(), 3)
        del layer


def test_codes_of_other_orders_are_those_of_bytes(seeded: torch.Generator) -> None:
    """A packed stream along input channels, and columns of words in both of their orders."""
    from cpu_backend.providers import codes as reader

    numbers = torch.randint(0, 16, (16, 64), generator=seeded, dtype=torch.int32)
    scales = torch.ones(1, 16)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    words = (numbers.view(16, -1, 8) << shifts).sum(-1, dtype=torch.int32)
    columns = numbers.t().reshape(64, -1, 8)
    of_n = (columns << shifts).sum(-1, dtype=torch.int32)
    kept = torch.empty_like(columns)
    kept[..., list(reader.AWQ_ORDER)] = columns
    awq = (kept << shifts).sum(-1, dtype=torch.int32)
    for order, tensor in (("words_of_k", words), ("words_of_n", of_n)):
        matrix = Matrix(Codes(tensor, order, 4), GroupScales(scales, 64), 64, Activations())
        assert torch.equal(reader.plain(matrix).codes, numbers), order
    matrix = Matrix(Codes(awq, "words_of_n_awq", 4), GroupScales(scales, 64), 64, Activations())
    ops.load()
    native = load("native").quantized(matrix, torch.float32)
    assert torch.equal(native(torch.eye(64)).t().round(), (reader.plain(matrix).codes - 8).float())


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("parts", [2, 1], ids=["with a gate", "without"])
def test_experts(
    provider: Provider, parts: int, tokens: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    experts, hidden, intermediate, top_k = 6, 64, 96, 2
    name = "silu" if parts == 2 else "relu2"
    activate = functools.partial(gated, "silu") if parts == 2 else relu2
    gate_up = random(seeded, dtype, experts, parts * intermediate, hidden) / 8
    down = random(seeded, dtype, experts, hidden, intermediate) / 8
    x = random(seeded, dtype, tokens, hidden)
    scores = torch.rand(tokens, experts, generator=seeded).softmax(-1)
    weights, ids = scores.topk(top_k)
    with where_supported(provider):
        layer = provider.experts(gate_up, down, name)
    exact = torch.zeros(tokens, hidden, dtype=torch.float64)
    for token in range(tokens):
        for weight, expert in zip(weights[token], ids[token], strict=True):
            h = activate(gate_up[expert].double() @ x[token].double())
            exact[token] += weight.double() * (down[expert].double() @ h)
    out = torch.empty_like(x)
    layer(out, x, weights, ids.int())
    assert_close(out, exact, 6)
    # What another rank has adds nothing.
    elsewhere = ids.int().clone()
    elsewhere[:, 0] = -1
    layer(out, x, weights, elsewhere)
    for token in range(tokens):
        h = activate(gate_up[ids[token, 1]].double() @ x[token].double())
        exact[token] = weights[token, 1].double() * (down[ids[token, 1]].double() @ h)
    assert_close(out, exact, 6)

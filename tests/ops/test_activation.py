"""Plain and gated activations."""

from __future__ import annotations

import pytest
import torch

from tests.ops.accuracy import ODD_SIZES, assert_accurate, guarded
from tests.reference.activation import GATED, PLAIN

ALL = PLAIN | GATED


def op(name: str) -> torch._ops.OpOverloadPacket:
    return getattr(torch.ops._C, name)


def width(name: str, size: int) -> int:
    return 2 * size if name in GATED else size


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("size", ODD_SIZES)
def test_activation_matches_reference(
    name: str, size: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    columns = width(name, size)
    x = guarded(5, columns, dtype, 4 * torch.randn(5, columns, generator=seeded))
    out = guarded(5, size, dtype)
    op(name)(out.rows, x.rows)
    assert_accurate(out.rows, ALL[name], x.rows)
    out.assert_intact()
    x.assert_intact()


@pytest.mark.parametrize("name", ALL)
def test_activation_is_accurate_near_zero_and_in_the_tails(name: str, dtype: torch.dtype) -> None:
    for low, high in [(-1e-3, 1e-3), (-5.0, -4.0), (-12.0, -8.0), (8.0, 100.0)]:
        x = torch.linspace(low, high, 101).to(dtype).repeat(1, width(name, 1))
        out = torch.empty(1, 101, dtype=dtype)
        op(name)(out, x)
        assert_accurate(out, ALL[name], x)


@pytest.mark.parametrize("name", ALL)
def test_activation_of_huge_values_and_nan(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([[-largest, largest, -100.0, 100.0, float("nan")]], dtype=dtype)
    x = torch.cat([x, torch.ones_like(x)], dim=1) if name in GATED else x
    x = x.flip(1) if name == "mul_and_silu" else x
    out = torch.empty(1, 5, dtype=dtype)
    op(name)(out, x)
    out = out.flip(1) if name == "mul_and_silu" else out
    if name == "relu_squared":  # as torch squares
        assert torch.equal(out[0, [1, 3]], x[0, [1, 3]].square())
    else:
        assert out[0, 1] == largest
        assert out[0, 3] == 100
    assert out[0, [0, 2]].double().abs().max() < 1e-30
    assert out[0, 4].isnan()


@pytest.mark.parametrize("name", ALL)
def test_activation_accepts_more_dimensions_and_no_tokens(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 6 * width(name, 9)).to(dtype).view(2, 3, -1)
    out = torch.empty(2, 3, 9, dtype=dtype)
    op(name)(out, x)
    assert_accurate(out, ALL[name], x)
    op(name)(out[:0], x[:0])


@pytest.mark.parametrize("name", ALL)
def test_activation_takes_any_strides(name: str, dtype: torch.dtype) -> None:
    columns = width(name, 9)
    values = torch.linspace(-4, 4, 4 * 3 * 6 * columns).to(dtype)
    for x in (
        values.view(4 * 3, columns, 6)[..., 1],
        values.view(6 * columns, 12)[:columns].T,
        values.view(4, 3, 6, columns)[:, 1:, :4].transpose(0, 2),
    ):
        out, dense = (torch.empty((*x.shape[:-1], 9), dtype=dtype) for _ in range(2))
        op(name)(out, x)
        op(name)(dense, x.contiguous())
        assert torch.equal(out, dense)


@pytest.mark.parametrize("name", ALL)
def test_activation_keeps_rows_independent(name: str, seeded: torch.Generator) -> None:
    x = torch.randn(300, width(name, 129), generator=seeded)
    together, alone = torch.empty(300, 129), torch.empty(300, 129)
    op(name)(together, x)
    for row in range(0, 300, 7):
        op(name)(alone[row : row + 1], x[row : row + 1])
        assert torch.equal(together[row], alone[row])


def test_activation_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="which does not fit the input"):
        torch.ops._C.silu_and_mul(torch.empty(2, 8), torch.empty(2, 8))
    with pytest.raises(ValueError, match="which does not fit the input"):
        torch.ops._C.gelu_new(torch.empty(3, 8), torch.empty(2, 8))
    with pytest.raises(TypeError, match="out has dtype Half but input has Float"):
        torch.ops._C.gelu_new(torch.empty(2, 8).half(), torch.empty(2, 8))

"""Earned tolerances, and buffers that show a write or a read past their edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# One below, at and one above the vector lengths of all targets (4, 8 and 16 lanes), and multiples.
ODD_SIZES = (1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 129)


def assert_accurate(
    result: torch.Tensor,
    compute: Callable[..., torch.Tensor],
    *inputs: torch.Tensor | None,
    slack: float = 0.0,
) -> None:
    """The error of ``result`` is at most twice that of plain PyTorch.

    The truth is ``compute`` in fp64; PyTorch's attempt is ``compute`` in fp32, rounded once to the
    dtype of ``result``, which is the best that a model without these ops could do.  Eight fp32
    ulps of the largest value are allowed on top: what a chain of 128 additions may cost (half an
    ulp times the root of 128, with a margin), where PyTorch's sums are of as many short chains as
    its CPU has lanes or a tensor is so small that it was lucky; ``slack`` times that value where
    a kernel is documented not to have the accuracy of fp32.
    """
    exact = compute(*(x if x is None else x.double() for x in inputs))
    plain = compute(*(x if x is None else x.float() for x in inputs)).to(result.dtype)
    assert result.shape == exact.shape
    if exact.numel() == 0:
        return
    assert not result.isnan().any()
    error = (result.double() - exact).abs().max().item()
    earned = (plain.double() - exact).abs().max().item()
    floor = (8 * torch.finfo(torch.float32).eps + slack) * exact.abs().max().item()
    assert error <= 2 * earned + floor, f"error {error:.3e}, PyTorch's {earned:.3e}"


@dataclass(frozen=True)
class Guarded:
    """A matrix with strided rows inside a buffer that is NaN everywhere else."""

    rows: torch.Tensor
    buffer: torch.Tensor

    def assert_intact(self) -> None:
        """Nothing around the matrix was written."""
        outside = torch.ones_like(self.buffer, dtype=torch.bool)
        count, size = self.rows.shape
        outside[1 : 1 + count, 1 : 1 + size] = False
        assert self.buffer[outside].isnan().all()


def guarded(
    count: int, size: int, dtype: torch.dtype, content: torch.Tensor | None = None
) -> Guarded:
    """[count, size] with a row of NaN above and below, and NaN before and after each row."""
    buffer = torch.full((count + 2, size + 20), float("nan"), dtype=dtype)
    rows = buffer[1 : 1 + count, 1 : 1 + size]
    if content is not None:
        rows.copy_(content)
    return Guarded(rows, buffer)


def check_op(op: Any, arguments: tuple[Any, ...]) -> None:
    """The op reads and writes what its schema says.  It has no shapes for a compiler: models are
    not compiled here."""
    tests = ("test_schema", "test_autograd_registration")
    torch.library.opcheck(op, arguments, test_utils=tests)


def scattered(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, each in memory as far from the next as another one takes."""
    result = torch.empty((*x.shape, 2), dtype=x.dtype)[..., 0]
    return result.copy_(x)

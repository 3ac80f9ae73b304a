"""The products of adapters: every row with its own, and none where there is none."""

from __future__ import annotations

import pytest
import torch

from cpu_backend.products import row_by_row
from cpu_backend.worker import lora

ADAPTERS, RANK, INPUTS, OUTPUTS = 3, 4, 10, 7
INDICES = torch.tensor([2, -1, 0, 2, -1, 1])


@pytest.fixture
def wrapper() -> lora.CPUPunicaWrapper:
    made = lora.CPUPunicaWrapper(16, 8, torch.device("cpu"))
    made._token_lora_indices[: len(INDICES)] = INDICES
    made._sampler_indices[: len(INDICES)] = INDICES
    made.indices_len = [len(INDICES)] * 4
    return made


def _random(*sizes: int, generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*sizes, generator=generator).to(dtype)


def _expected(
    y: torch.Tensor, x: torch.Tensor, a: torch.Tensor | None, b: torch.Tensor
) -> torch.Tensor:
    result = y.double()
    for row, index in enumerate(INDICES.tolist()):
        if index >= 0:
            inner = x[row].double()
            if a is not None:
                inner = a[index, 0].double() @ inner
            result[row] += b[index, 0].double() @ inner
    return result.to(y.dtype)


def test_linear_with_slices(
    wrapper: lora.CPUPunicaWrapper, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    options = {"generator": seeded, "dtype": dtype}
    x = _random(len(INDICES), INPUTS, **options)
    y = _random(len(INDICES), 2 * OUTPUTS, **options)
    a = [_random(ADAPTERS, 1, RANK, INPUTS, **options) for _ in range(2)]
    b = [_random(ADAPTERS, 1, OUTPUTS, RANK, **options) for _ in range(2)]
    halves = y.split(OUTPUTS, dim=1)
    expected = [_expected(half, x, *pair) for half, *pair in zip(halves, a, b, strict=True)]
    wrapper.add_lora_linear(y, x, tuple(a), tuple(b), 1.0, (OUTPUTS, OUTPUTS))
    torch.testing.assert_close(y, torch.cat(expected, dim=1))


def test_logits_and_embedding(wrapper: lora.CPUPunicaWrapper, seeded: torch.Generator) -> None:
    options = {"generator": seeded, "dtype": torch.float32}
    x = _random(len(INDICES), INPUTS, **options)
    a = _random(ADAPTERS, 1, RANK, INPUTS, **options)
    b = _random(ADAPTERS, 1, OUTPUTS, RANK, **options)
    logits = _random(len(INDICES), OUTPUTS, **options)
    expected = _expected(logits, x, a, b)
    wrapper.add_lora_logits(logits, x, a, b, 1.0)
    torch.testing.assert_close(logits, expected)

    rows = _random(len(INDICES), RANK, **options)
    hidden = _random(len(INDICES), OUTPUTS, **options)
    expected = _expected(hidden, rows, None, b)
    wrapper.add_lora_embedding(hidden, rows, b)
    torch.testing.assert_close(hidden, expected)


def test_a_row_does_not_depend_on_the_others(
    wrapper: lora.CPUPunicaWrapper, seeded: torch.Generator
) -> None:
    options = {"generator": seeded, "dtype": torch.float32}
    x, weight = _random(70, 576, **options), _random(33, 576, **options)
    together = row_by_row(x, weight)
    for row in (0, 31, 69):
        assert torch.equal(row_by_row(x[row : row + 1], weight)[0], together[row])

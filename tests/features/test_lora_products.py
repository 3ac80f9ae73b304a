"""The products of adapters: every row with its own, and none where there is none."""

from __future__ import annotations

import pytest
import torch

from cpu_backend import ops
from cpu_backend.products import row_by_row
from cpu_backend.worker import lora

ops.load()

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


@pytest.mark.parametrize("adapter_dtype", [torch.float16, torch.float32])
def test_adapters_of_another_type_than_the_model(
    wrapper: lora.CPUPunicaWrapper, adapter_dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """As ``--lora-dtype`` has them."""
    x = _random(len(INDICES), INPUTS, generator=seeded, dtype=torch.bfloat16)
    y = _random(len(INDICES), OUTPUTS, generator=seeded, dtype=torch.bfloat16)
    a = _random(ADAPTERS, 1, RANK, INPUTS, generator=seeded, dtype=adapter_dtype)
    b = _random(ADAPTERS, 1, OUTPUTS, RANK, generator=seeded, dtype=adapter_dtype)
    expected = _expected(y, x, a, b)
    wrapper.add_lora_linear(y, x, (a,), (b,), 1.0, (OUTPUTS,))
    torch.testing.assert_close(y, expected)


def test_a_row_does_not_depend_on_the_others(seeded: torch.Generator) -> None:
    """Rows of three adapters and none, more than one thread takes."""
    options = {"generator": seeded, "dtype": torch.bfloat16}
    rows, inputs, rank, outputs = 150, 577, 20, 1030
    x, before = _random(rows, inputs, **options), _random(rows, outputs, **options)
    a, b = _random(ADAPTERS, rank, inputs, **options), _random(ADAPTERS, outputs, rank, **options)
    adapters = torch.randint(-1, ADAPTERS, (rows,), generator=seeded)

    def added(chosen: slice) -> torch.Tensor:
        y = before[chosen].clone()
        inner = torch.empty(len(y), rank)
        ops.lora_shrink(inner, x[chosen], a, adapters[chosen], 0.5)
        ops.lora_expand(y, inner, b, adapters[chosen])
        return y

    together = added(slice(None))
    assert torch.equal(together[adapters < 0], before[adapters < 0])
    for row in (0, 31, 64, 149):
        assert torch.equal(added(slice(row, row + 1))[0], together[row])
    for row in range(0, rows, 7):
        if (adapter := int(adapters[row])) >= 0:
            inner = a[adapter].double() @ x[row].double() * 0.5
            expected = before[row].double() + b[adapter].double() @ inner
            torch.testing.assert_close(together[row], expected.bfloat16())


def test_a_product_in_python_does_not_depend_on_other_rows(seeded: torch.Generator) -> None:
    x = _random(70, 576, generator=seeded, dtype=torch.float32)
    weight = _random(33, 576, generator=seeded, dtype=torch.float32)
    together = row_by_row(x, weight)
    for row in (0, 31, 69):
        assert torch.equal(row_by_row(x[row : row + 1], weight)[0], together[row])


def test_a_recorded_step_asks_anew_which_adapter_a_token_has(seeded: torch.Generator) -> None:
    options = {"generator": seeded, "dtype": torch.float32}
    x, weights = _random(4, INPUTS, **options), _random(ADAPTERS, RANK, INPUTS, **options)
    adapters = torch.tensor([0, 0, -1, 2])

    def forward() -> torch.Tensor:
        inner = torch.empty(4, RANK)
        ops.lora_shrink(inner, x, weights, adapters, 1.0)
        return inner

    recording = ops.StepRecording([], [x, weights, adapters])
    with recording:
        recording.output = forward()
    assert recording.error == ""
    adapters.copy_(torch.tensor([-1, 1, 2, 2]))
    recording.fill_with_garbage()
    assert torch.equal(recording.replay([]), forward())

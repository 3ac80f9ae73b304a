"""The machine's limits: all of the work is done, by all threads."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

from cpu_backend import ops


@pytest.mark.parametrize("words", [0, 1, 17, 1000, 100_003])
def test_read_bytes_returns_the_exclusive_or_of_all_words(
    words: int, seeded: torch.Generator
) -> None:
    data = torch.randint(0, 1 << 31, (words,), generator=seeded, dtype=torch.int32)
    assert ops.read_bytes(data) == functools.reduce(operator.xor, data.tolist(), 0)


def test_multiply_adds_counts_every_thread(threads: None) -> None:
    torch.set_num_threads(1)
    alone = ops.multiply_adds(10)
    assert alone >= 2 * 10 * 8 * 4
    torch.set_num_threads(3)
    assert ops.multiply_adds(10) == 3 * alone


def test_read_bytes_refuses_what_it_would_not_read_whole() -> None:
    with pytest.raises(ValueError, match="contiguous tensor of whole 32-bit words"):
        ops.read_bytes(torch.zeros(3, dtype=torch.int8))
    with pytest.raises(ValueError, match="contiguous"):
        ops.read_bytes(torch.zeros(4, 4).t())

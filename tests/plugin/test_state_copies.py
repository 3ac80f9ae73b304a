"""Copies of states from slot to slot."""

from __future__ import annotations

import torch

from cpu_backend.worker.state_copies import batch_memcpy


def test_each_copy_takes_its_bytes_and_no_others() -> None:
    pool = torch.arange(64, dtype=torch.uint8)
    before, first = pool.clone(), pool.data_ptr()
    batch_memcpy(
        torch.tensor([first, first + 20]),
        torch.tensor([first + 32, first + 22]),  # the second overlaps with what it copies
        torch.tensor([7, 6], dtype=torch.int32),
        BLOCK_SIZE=1024,
    )
    expected = before.clone()
    expected[32:39], expected[22:28] = before[:7], before[20:26]
    assert torch.equal(pool, expected)

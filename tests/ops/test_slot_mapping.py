"""compute_slot_mapping_kernel_impl against a loop."""

from __future__ import annotations

import pytest
import torch

from cpu_backend.worker.slot_mapping import compute_slot_mapping, compute_slot_mapping_of_parts

QUERY_LENS = (5, 0, 1, 33, 1)
COMPUTED = (0, 7, 130, 15, 31)  # tokens of each request that are in the cache already


def expected(
    starts: torch.Tensor, positions: torch.Tensor, blocks: torch.Tensor, block_size: int
) -> list[int]:
    slots = []
    for request in range(len(starts) - 1):
        for token in range(int(starts[request]), int(starts[request + 1])):
            page, offset = divmod(int(positions[token]), block_size)
            slots.append(int(blocks[request, page]) * block_size + offset)
    return slots


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
def test_slot_mapping_matches_a_loop(
    index: torch.dtype, block_size: int, strided: bool, seeded: torch.Generator
) -> None:
    starts = torch.tensor([0, *QUERY_LENS]).cumsum(0).to(index)
    positions = torch.cat(
        [torch.arange(c, c + n) for c, n in zip(COMPUTED, QUERY_LENS, strict=True)]
    )
    blocks = torch.randperm(5 * 30, generator=seeded).view(5, 30).to(index)
    blocks = blocks[:, 3:14] if strided else blocks
    slots = torch.full((len(positions) + 3,), -7)
    torch.ops._C.compute_slot_mapping_kernel_impl(starts, positions, blocks, slots, block_size)
    assert slots.tolist() == [*expected(starts, positions, blocks, block_size), -7, -7, -7]


def test_pages_may_be_parts_of_the_hosts_blocks() -> None:
    starts, positions = torch.tensor([0, 40]).int(), torch.arange(30, 70)
    blocks, pad = torch.randperm(8).view(1, 8).int(), [-1, -1]
    slots = torch.zeros(42, dtype=torch.int64)
    tensors = (40, 42, starts, positions, blocks, 8)
    compute_slot_mapping_of_parts(*tensors, 16, slots, 64, 4, 1, 0, 1, -1, 1024)
    assert slots.tolist() == expected(starts, positions, blocks, 16) + pad
    compute_slot_mapping(*tensors, slots.zero_(), 16, 1, 0, 1, -1, 1024)
    assert slots.tolist() == expected(starts, positions, blocks, 16) + pad


def test_slot_mapping_does_not_overflow_int32() -> None:
    starts, positions = torch.tensor([0, 1]).int(), torch.tensor([5])
    slots = torch.zeros(1, dtype=torch.int64)
    blocks = torch.tensor([[2**30]], dtype=torch.int32)
    torch.ops._C.compute_slot_mapping_kernel_impl(starts, positions, blocks, slots, 128)
    assert slots.item() == 2**37 + 5


@pytest.mark.parametrize("starts", [[0], [0, 0, 0]])
def test_slot_mapping_accepts_no_tokens(starts: list[int]) -> None:
    none = torch.empty(0, dtype=torch.int64)
    blocks = torch.zeros(2, 1, dtype=torch.int32)
    torch.ops._C.compute_slot_mapping_kernel_impl(
        torch.tensor(starts).int(), none, blocks, none.clone(), 16
    )


def test_slot_mapping_refuses_what_does_not_fit() -> None:
    op = torch.ops._C.compute_slot_mapping_kernel_impl
    starts, positions = torch.tensor([0, 3]).int(), torch.arange(3)
    blocks, slots = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="block_size must be positive"):
        op(starts, positions, blocks, slots, 0)
    with pytest.raises(TypeError, match="one integer type"):
        op(starts.long(), positions, blocks, slots, 16)
    with pytest.raises(TypeError, match="int32 or int64"):
        op(starts.short(), positions, blocks.short(), slots, 16)
    with pytest.raises(TypeError, match="positions has dtype Int, expected Long"):
        op(starts, positions.int(), blocks, slots, 16)
    with pytest.raises(ValueError, match="2 positions and 3 slots for 3 tokens"):
        op(starts, positions[:2], blocks, slots, 16)
    with pytest.raises(ValueError, match="3 positions and 2 slots for 3 tokens"):
        op(starts, positions, blocks, slots[:2], 16)

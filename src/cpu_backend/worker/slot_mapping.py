"""The Triton kernel of every step on the V1 runner, as an op."""

from __future__ import annotations

from typing import Any

import torch


def compute_slot_mapping(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: torch.Tensor,
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    slot_mapping_ptr: torch.Tensor,
    KV_CACHE_BLOCK_SIZE: int,  # noqa: N803
    TOTAL_CP_WORLD_SIZE: int,  # noqa: N803
    TOTAL_CP_RANK: int,  # noqa: N803
    CP_KV_CACHE_INTERLEAVE_SIZE: int,  # noqa: N803
    PAD_ID: int,  # noqa: N803
    BLOCK_SIZE: int,  # noqa: N803
) -> None:
    """slot_mapping[t] = page of token t * page size + offset; the rest is PAD_ID.

    query_start_loc [requests + 1] and block_table [requests, pages] int32, positions int64.
    """
    del max_num_tokens, block_table_stride, TOTAL_CP_RANK, CP_KV_CACHE_INTERLEAVE_SIZE, BLOCK_SIZE
    if TOTAL_CP_WORLD_SIZE != 1:
        raise ValueError("context parallelism is not supported on the CPU; leave it at 1.")
    torch.ops._C.compute_slot_mapping_kernel_impl(
        query_start_loc_ptr, positions_ptr, block_table_ptr, slot_mapping_ptr, KV_CACHE_BLOCK_SIZE
    )
    slot_mapping_ptr[num_tokens:].fill_(PAD_ID)


def compute_slot_mapping_of_parts(*arguments: Any) -> None:
    """As hosts before 0.32 have it, where a page of the table may be a part of what they call a
    block: of block_size tokens, which stands before slot_mapping, BLOCKS_PER_KV_BLOCK of them."""
    block_size, slot_mapping = arguments[6:8]
    compute_slot_mapping(*(*arguments[:6], slot_mapping, block_size, *arguments[10:]))

"""Copies of recurrent states from slot to slot, where the host has Triton kernels; the parameters
are the kernels'.

With a prefix cache, a request's state moves on to another slot at the end of each of its blocks.
Beside drafts the host finds out by itself which slots those are, from addresses that it has kept.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

# ruff: noqa: N803 (constants of the kernels)


def batch_memcpy(
    src_ptrs: torch.Tensor,
    dst_ptrs: torch.Tensor,
    sizes: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """Copy sizes[i] bytes from address src_ptrs[i] to dst_ptrs[i], one after the other; the two may
    overlap."""
    del BLOCK_SIZE
    for source, target, size in zip(
        src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True
    ):
        ctypes.memmove(target, source, size)


def copy_after_step(
    num_accepted_tokens: torch.Tensor,
    mamba_state_idx: torch.Tensor,
    num_scheduled_tokens: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    num_draft_tokens: torch.Tensor,
    *given: Any,
    block_size: int,
    **constants: Any,
) -> None:
    """Keep the states of requests that a step has taken to the end of a block or beyond.

    All counts [requests]: mamba_state_idx: the request's block whose slots the step has written;
    where the end of a block lies among the tokens accepted, the state there becomes the block's.
    given: block tables and states as of _copy, then the counts that become 1 where that is the
    state to go on with, what only the host's other runner has, and the number of requests.
    """
    *described, accepted_out, _, requests = given
    running = (num_computed_tokens + num_scheduled_tokens - num_draft_tokens)[:requests]
    computed = running + num_accepted_tokens[:requests] - 1
    ends = computed // block_size * block_size
    for request in torch.nonzero(ends >= running).flatten().tolist():
        source, end = int(mamba_state_idx[request]), int(ends[request])
        target, accepted = end // block_size - 1, end - int(running[request])
        if source == target:
            accepted_out[request] = 1
        if source != target or accepted:
            _copy(request, source, target, accepted, *described, **constants)


def copy_before_step(
    mamba_state_idx: torch.Tensor,
    src_col: torch.Tensor,
    token_bias: torch.Tensor,
    *given: Any,
    **constants: Any,
) -> None:
    """Bring the states of requests that go on in another block there.

    All [requests]: src_col: the block of the step before, -1: none; mamba_state_idx: this step's;
    token_bias: how many tokens were accepted after the first.  given: block tables and states as of
    _copy, then what only the host's other runner has, and the number of requests.
    """
    *described, _, requests = given
    moves = (src_col >= 0) & (src_col != mamba_state_idx)
    for request in torch.nonzero(moves[:requests]).flatten().tolist():
        source, target = int(src_col[request]), int(mamba_state_idx[request])
        _copy(request, source, target, int(token_bias[request]), *described, **constants)


def _copy(
    request: int,
    source: int,
    target: int,
    accepted: int,
    tables: torch.Tensor,
    table_stride: int,
    addresses: torch.Tensor,
    slot_bytes: torch.Tensor,
    element_bytes: torch.Tensor,
    sizes: torch.Tensor,
    places: torch.Tensor,
    groups: torch.Tensor,
    rows: torch.Tensor,
    row_bytes: torch.Tensor,
    CONV_STATE_DIM_FIRST: bool,
    **unused: Any,
) -> None:
    """Every layer's state of one request after ``accepted`` more tokens than the first, from its
    block ``source`` to its block ``target``.

    tables [groups]: addresses of block tables; the rest [states]: where slots begin, their size,
    that of an element; elements of a state or, of a convolution's, of one of its ``places``; of
    these, where places are the last dimension, as many rows.
    """
    del unused  # how a GPU would share the work out
    described = zip(
        addresses.tolist(), slot_bytes.tolist(), element_bytes.tolist(), sizes.tolist(),
        places.tolist(), groups.tolist(), rows.tolist(), row_bytes.tolist(),
        strict=True,
    )  # fmt: skip
    for address, slot, element, size, count, group, lines, stride in described:
        table = int(tables[group]) + 4 * request * table_stride

        def at(block: int, address: int = address, slot: int = slot, table: int = table) -> int:
            return int(address + slot * ctypes.c_int32.from_address(table + 4 * block).value)

        if count == 0:  # a slot for each token
            ctypes.memmove(at(target), at(source + accepted), size * element)
            continue
        skipped, kept = accepted * size * element, (count - accepted) * size * element
        for line in range(lines if CONV_STATE_DIM_FIRST else 1):
            ctypes.memmove(at(target) + line * stride, at(source) + line * stride + skipped, kept)


KERNELS: dict[str, Callable[..., None]] = {
    "batch_memcpy_kernel": batch_memcpy,
    "postprocess_mamba_fused_kernel": copy_after_step,
    "precopy_mamba_align_fused_kernel": copy_before_step,
}

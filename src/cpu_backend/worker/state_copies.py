"""Copies of recurrent states from slot to slot, where the host has a Triton kernel."""

from __future__ import annotations

import ctypes

import torch


def batch_memcpy(
    src_ptrs: torch.Tensor,
    dst_ptrs: torch.Tensor,
    sizes: torch.Tensor,
    BLOCK_SIZE: int,  # noqa: N803
) -> None:
    """Copy sizes[i] bytes from address src_ptrs[i] to dst_ptrs[i], one after the other; the two may
    overlap."""
    del BLOCK_SIZE
    for source, target, size in zip(
        src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True
    ):
        ctypes.memmove(target, source, size)

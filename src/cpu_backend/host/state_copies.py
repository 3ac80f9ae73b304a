"""The Triton kernel with which states are copied from slot to slot, as a function.

What: worker/state_copies.py in the place of ``batch_memcpy_kernel``.
Why: Triton does not compile for CPUs here.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

import functools

from cpu_backend.host.seam import rely_on

KERNEL = rely_on(
    "vllm.v1.worker.mamba_utils", "batch_memcpy_kernel(src_ptrs, dst_ptrs, sizes, BLOCK_SIZE)"
)


@functools.cache  # the host looks through every module, and does so again for every engine
def register() -> None:
    """When the host asks its platform for kernels."""
    from vllm.triton_utils.dispatcher import register_kernels

    from cpu_backend.worker.state_copies import batch_memcpy

    register_kernels({KERNEL: batch_memcpy})

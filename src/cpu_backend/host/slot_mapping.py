"""The Triton kernel that every step on the V1 runner calls, as an op.

What: worker/slot_mapping.py in the place of ``ComputeSlotMappingKernel``.
Why: Triton does not compile for CPUs here.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

import functools

from cpu_backend.host.seam import rely_on

KERNEL = rely_on(
    "vllm.v1.worker.block_table",
    "ComputeSlotMappingKernel.kernel(num_tokens, max_num_tokens, query_start_loc_ptr, "
    "positions_ptr, block_table_ptr, block_table_stride, slot_mapping_ptr, KV_CACHE_BLOCK_SIZE, "
    "TOTAL_CP_WORLD_SIZE, TOTAL_CP_RANK, CP_KV_CACHE_INTERLEAVE_SIZE, PAD_ID, BLOCK_SIZE)",
)


@functools.cache  # the host looks through every module, and does so again for every engine
def register() -> None:
    """When the host asks its platform for kernels."""
    from vllm.triton_utils.dispatcher import register_kernels

    from cpu_backend.worker.slot_mapping import compute_slot_mapping

    register_kernels({KERNEL: compute_slot_mapping})

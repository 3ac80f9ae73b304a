"""The Triton kernel that every step on the V1 runner calls, as an op.

What: worker/slot_mapping.py in the place of ``ComputeSlotMappingKernel``.
Why: Triton does not compile for CPUs here.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

import functools

from cpu_backend.host import source, triton_kernels
from cpu_backend.host.seam import Hosts, rely_on

MODULE = "vllm.v1.worker.block_table"
_BEGIN = (
    "ComputeSlotMappingKernel.kernel(num_tokens, max_num_tokens, query_start_loc_ptr, "
    "positions_ptr, block_table_ptr, block_table_stride, "
)
_END = "TOTAL_CP_WORLD_SIZE, TOTAL_CP_RANK, CP_KV_CACHE_INTERLEAVE_SIZE, PAD_ID, BLOCK_SIZE)"
OF_PARTS = Hosts(until=(0, 32))
KERNEL = rely_on(
    MODULE, f"{_BEGIN}slot_mapping_ptr, KV_CACHE_BLOCK_SIZE, {_END}", hosts=Hosts(since=(0, 32))
)
rely_on(
    MODULE,
    f"{_BEGIN}block_size, slot_mapping_ptr, KV_CACHE_BLOCK_SIZE, BLOCKS_PER_KV_BLOCK, {_END}",
    hosts=OF_PARTS,
)


@functools.cache  # the host looks through every module, and does so again for every engine
def register() -> None:
    """When the host asks its platform for kernels."""
    from cpu_backend.worker.slot_mapping import compute_slot_mapping, compute_slot_mapping_of_parts

    of_parts = source.host() in OF_PARTS
    op = compute_slot_mapping_of_parts if of_parts else compute_slot_mapping
    triton_kernels.register({KERNEL: op})

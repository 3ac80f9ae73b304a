"""The Triton kernels with which states are copied from slot to slot, as functions.

What: worker/state_copies.py in the place of the host's kernels.
Why: Triton does not compile for CPUs here.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

import functools

from cpu_backend.host import triton_kernels
from cpu_backend.host.seam import rely_on

MODULE = "vllm.v1.worker.mamba_utils"
_STATES = (
    "block_table_ptrs_ptr, block_table_stride_req, state_base_addrs_ptr, state_block_strides_ptr, "
    "state_elem_sizes_ptr, state_inner_sizes_ptr, state_conv_widths_ptr, state_group_indices_ptr, "
    "state_dim_row_count_ptr, state_dim_row_stride_ptr"
)
KERNELS = (
    rely_on(MODULE, "batch_memcpy_kernel(src_ptrs, dst_ptrs, sizes, BLOCK_SIZE)"),
    rely_on(
        MODULE,
        "postprocess_mamba_fused_kernel(num_accepted_tokens_ptr, mamba_state_idx_ptr, "
        "num_scheduled_tokens_ptr, num_computed_tokens_ptr, num_draft_tokens_ptr, "
        f"{_STATES}, num_accepted_tokens_out_ptr, idx_mapping_ptr, num_reqs, block_size, "
        "COPY_BLOCK_SIZE, CONV_STATE_DIM_FIRST, HAS_IDX_MAPPING, PRECOMPUTED_NEW_COMPUTED, "
        "TEMPORAL_TILES)",
    ),
    rely_on(
        MODULE,
        "precopy_mamba_align_fused_kernel(mamba_state_idx_ptr, src_col_ptr, token_bias_ptr, "
        f"{_STATES}, idx_mapping_ptr, num_reqs, COPY_BLOCK_SIZE, CONV_STATE_DIM_FIRST, "
        "HAS_IDX_MAPPING, TEMPORAL_TILES)",
    ),
)


@functools.cache  # the host looks through every module, and does so again for every engine
def register() -> None:
    """When the host asks its platform for kernels."""
    from cpu_backend.worker import state_copies

    ops = state_copies.KERNELS
    triton_kernels.register({name: ops[name.rpartition(".")[2]] for name in KERNELS})

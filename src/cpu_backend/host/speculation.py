"""The Triton kernels that speculative decoding calls, as ops.

What: worker/speculation.py in the place of the kernels that verify drafts and feed draft models.
Why: Triton does not compile for CPUs here.
Since: 0.32
Until: never: this is the host's way.
"""

from __future__ import annotations

import functools

from cpu_backend.host import triton_kernels
from cpu_backend.host.seam import rely_on

VERIFYING = "vllm.v1.sample.rejection_sampler"
DRAFTING = "vllm.v1.spec_decode.utils"
KERNELS = (
    rely_on(
        VERIFYING,
        "expand_kernel(output_ptr, input_ptr, cu_num_tokens_ptr, replace_from, replace_to, "
        "MAX_NUM_TOKENS)",
    ),
    rely_on(
        VERIFYING,
        "rejection_greedy_sample_kernel(output_token_ids_ptr, cu_num_draft_tokens_ptr, "
        "draft_token_ids_ptr, target_argmax_ptr, bonus_token_ids_ptr, is_greedy_ptr, max_spec_len, "
        "uniform_probs_ptr, synthetic_conditional_rates_ptr, SYNTHETIC_MODE)",
    ),
    rely_on(
        VERIFYING,
        "rejection_random_sample_kernel(output_token_ids_ptr, cu_num_draft_tokens_ptr, "
        "draft_token_ids_ptr, draft_probs_ptr, target_probs_ptr, bonus_token_ids_ptr, "
        "recovered_token_ids_ptr, uniform_probs_ptr, is_greedy_ptr, max_spec_len, vocab_size, "
        "synthetic_conditional_rates_ptr, NO_DRAFT_PROBS, SYNTHETIC_MODE)",
    ),
    rely_on(
        VERIFYING,
        "sample_recovered_tokens_kernel(output_token_ids_ptr, cu_num_draft_tokens_ptr, "
        "draft_token_ids_ptr, draft_probs_ptr, target_probs_ptr, inv_q_ptr, vocab_size, "
        "BLOCK_SIZE, NO_DRAFT_PROBS, USE_FP64_GUMBEL)",
    ),
    rely_on(
        DRAFTING,
        "eagle_prepare_inputs_padded_kernel(cu_num_draft_tokens_ptr, "
        "valid_sampled_tokens_count_ptr, query_start_loc_gpu_ptr, token_indices_to_sample_ptr, "
        "num_rejected_tokens_gpu_ptr, num_reqs)",
    ),
    rely_on(
        DRAFTING,
        "eagle_prepare_next_token_padded_kernel(sampled_token_ids_ptr, discard_request_mask_ptr, "
        "backup_next_token_ids_ptr, next_token_ids_ptr, valid_sampled_tokens_count_ptr, "
        "vocab_size, num_sampled_tokens_per_req, num_reqs, stride_sampled_token_ids, "
        "BLOCK_SIZE_TOKENS)",
    ),
    rely_on(
        DRAFTING,
        "eagle_step_slot_mapping_metadata_kernel(positions_ptr, block_table_ptr, "
        "block_table_stride, seq_lens_ptr, out_clamped_positions_ptr, out_slot_mapping_ptr, "
        "block_size, max_model_len, n_blocks_per_req, PAD_ID, batch_size)",
    ),
    rely_on(
        DRAFTING,
        "copy_and_expand_eagle_inputs_kernel(target_token_ids_ptr, target_positions_ptr, "
        "next_token_ids_ptr, out_input_ids_ptr, out_positions_ptr, out_is_rejected_token_mask_ptr, "
        "out_is_masked_token_mask_ptr, out_new_token_indices_ptr, out_hidden_state_mapping_ptr, "
        "query_start_loc_ptr, query_end_loc_ptr, padding_token_id, parallel_drafting_token_id, "
        "total_input_tokens, num_padding_slots_per_request, shift_input_ids, BLOCK_SIZE_TOKENS)",
    ),
    rely_on(
        DRAFTING,
        "copy_and_expand_dflash_inputs_kernel(next_token_ids_ptr, target_positions_ptr, "
        "out_input_ids_ptr, out_context_positions_ptr, out_query_positions_ptr, "
        "out_context_slot_mapping_ptr, out_query_slot_mapping_ptr, out_token_indices_ptr, "
        "block_table_ptr, block_table_stride, query_start_loc_ptr, num_rejected_tokens_ptr, "
        "parallel_drafting_token_id, block_size, num_query_per_req, num_speculative_tokens, "
        "total_input_tokens, BLOCK_SIZE, HAS_NUM_REJECTED)",
    ),
)
rely_on(
    "vllm.config.speculative",
    "SpeculativeConfig.uses_draft_kv_cache(self)",
    "SpeculativeConfig.uses_dynamic_speculative_decoding(self)",
    "SpeculativeConfig.rejection_sample_method",
    "SpeculativeConfig.parallel_drafting",
    "SpeculativeConfig.use_heterogeneous_vocab",
)


@functools.cache  # the host looks through every module, and does so again for every engine
def register() -> None:
    """When the host asks its platform for kernels."""
    from cpu_backend.worker import speculation

    ops = speculation.KERNELS
    triton_kernels.register({name: ops[name.rpartition(".")[2]] for name in KERNELS})

"""The Triton kernels of the host's speculative decoding, as ops; the parameters are the kernels'.

Integers come as the host has them, int32 or int64, and are read and written as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from cpu_backend.worker.sampler import CPUSampler

# ruff: noqa: N803 (constants of the kernels)


class CPURejectionSampler(RejectionSampler):
    """The host's, whose penalties count in tables of tokens by vocabulary."""

    @staticmethod
    def apply_penalties(
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        metadata: SpecDecodeMetadata,
        repeat_indices: torch.Tensor,
        output_token_ids: list[list[int]],
    ) -> torch.Tensor:
        """Those of each draft's request; output_token_ids: what stands before each draft."""
        del metadata
        if sampling_metadata.no_penalties:
            return logits
        assert sampling_metadata.prompt_token_ids is not None
        of_drafts = replace(
            sampling_metadata,
            prompt_token_ids=sampling_metadata.prompt_token_ids[repeat_indices],
            repetition_penalties=sampling_metadata.repetition_penalties[repeat_indices],
            frequency_penalties=sampling_metadata.frequency_penalties[repeat_indices],
            presence_penalties=sampling_metadata.presence_penalties[repeat_indices],
        )
        return CPUSampler.apply_penalties(logits, of_drafts, output_token_ids)


def expand(
    output_ptr: torch.Tensor,
    input_ptr: torch.Tensor,
    cu_num_tokens_ptr: torch.Tensor,
    replace_from: int,
    replace_to: int,
    MAX_NUM_TOKENS: int,
) -> None:
    """One value per request [requests] to one per token, ``replace_from`` replaced."""
    del MAX_NUM_TOKENS
    torch.ops._C.expand_kernel_impl(
        output_ptr, input_ptr, cu_num_tokens_ptr, replace_from, replace_to
    )


def reject_greedy(
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    target_argmax_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor | None,
    max_spec_len: int,
    uniform_probs_ptr: torch.Tensor | None,
    synthetic_conditional_rates_ptr: torch.Tensor | None,
    SYNTHETIC_MODE: bool,
) -> None:
    """Greedy requests take drafts as long as they are what the target would have chosen."""
    del uniform_probs_ptr, synthetic_conditional_rates_ptr
    _refuse_synthetic(SYNTHETIC_MODE)
    torch.ops._C.rejection_greedy_sample_kernel_impl(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        target_argmax_ptr,
        bonus_token_ids_ptr,
        is_greedy_ptr,
        max_spec_len,
    )


def reject_random(
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    bonus_token_ids_ptr: torch.Tensor,
    recovered_token_ids_ptr: torch.Tensor,
    uniform_probs_ptr: torch.Tensor,
    is_greedy_ptr: torch.Tensor,
    max_spec_len: int,
    vocab_size: int,
    synthetic_conditional_rates_ptr: torch.Tensor | None,
    NO_DRAFT_PROBS: bool,
    SYNTHETIC_MODE: bool,
) -> None:
    """The others take a draft with probability target / draft, and else the recovered token."""
    del synthetic_conditional_rates_ptr
    _refuse_synthetic(SYNTHETIC_MODE)
    torch.ops._C.rejection_random_sample_kernel_impl(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        draft_probs_ptr,
        target_probs_ptr,
        bonus_token_ids_ptr,
        recovered_token_ids_ptr,
        uniform_probs_ptr,
        is_greedy_ptr,
        max_spec_len,
        vocab_size,
        NO_DRAFT_PROBS,
    )


def _refuse_synthetic(mode: bool) -> None:
    if mode:
        raise ValueError("made-up rates of acceptance are not supported on the CPU.")


def sample_recovered(
    output_token_ids_ptr: torch.Tensor,
    cu_num_draft_tokens_ptr: torch.Tensor,
    draft_token_ids_ptr: torch.Tensor,
    draft_probs_ptr: torch.Tensor | None,
    target_probs_ptr: torch.Tensor,
    inv_q_ptr: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
    NO_DRAFT_PROBS: bool,
    USE_FP64_GUMBEL: bool,
) -> None:
    """For each draft a token from what the target gives more probability than the draft does."""
    del BLOCK_SIZE, USE_FP64_GUMBEL  # the noise has been drawn
    torch.ops._C.sample_recovered_tokens_kernel_impl(
        output_token_ids_ptr,
        cu_num_draft_tokens_ptr,
        draft_token_ids_ptr,
        draft_probs_ptr,
        target_probs_ptr,
        inv_q_ptr,
        vocab_size,
        NO_DRAFT_PROBS,
    )


def prepare_inputs(
    cu_num_draft_tokens_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    query_start_loc_gpu_ptr: torch.Tensor,
    token_indices_to_sample_ptr: torch.Tensor,
    num_rejected_tokens_gpu_ptr: torch.Tensor,
    num_reqs: int,
) -> None:
    """Of each request, how many drafts were rejected and where the last token that stands is."""
    torch.ops._C.eagle_prepare_inputs_padded_kernel_impl(
        cu_num_draft_tokens_ptr,
        valid_sampled_tokens_count_ptr,
        query_start_loc_gpu_ptr,
        token_indices_to_sample_ptr,
        num_rejected_tokens_gpu_ptr,
        num_reqs,
    )


def prepare_next_tokens(
    sampled_token_ids_ptr: torch.Tensor,
    discard_request_mask_ptr: torch.Tensor,
    backup_next_token_ids_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    valid_sampled_tokens_count_ptr: torch.Tensor,
    vocab_size: int,
    num_sampled_tokens_per_req: int,
    num_reqs: int,
    stride_sampled_token_ids: int,
    BLOCK_SIZE_TOKENS: int,
) -> None:
    """Of each request, the last token that was sampled, or its backup, and how many were."""
    del stride_sampled_token_ids, BLOCK_SIZE_TOKENS
    torch.ops._C.eagle_prepare_next_token_padded_kernel_impl(
        sampled_token_ids_ptr,
        discard_request_mask_ptr,
        backup_next_token_ids_ptr,
        next_token_ids_ptr,
        valid_sampled_tokens_count_ptr,
        vocab_size,
        num_sampled_tokens_per_req,
        num_reqs,
    )


def step(
    positions_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    seq_lens_ptr: torch.Tensor,
    out_clamped_positions_ptr: torch.Tensor,
    out_slot_mapping_ptr: torch.Tensor,
    block_size: int,
    max_model_len: int,
    n_blocks_per_req: int,
    PAD_ID: int,
    batch_size: int,
) -> None:
    """Positions, lengths and slots of a draft's next token."""
    del block_table_stride, n_blocks_per_req, batch_size
    torch.ops._C.eagle_step_slot_mapping_metadata_kernel_impl(
        positions_ptr,
        block_table_ptr,
        seq_lens_ptr,
        out_clamped_positions_ptr,
        out_slot_mapping_ptr,
        block_size,
        max_model_len,
        PAD_ID,
    )


def expand_eagle_inputs(
    target_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    next_token_ids_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_positions_ptr: torch.Tensor,
    out_is_rejected_token_mask_ptr: torch.Tensor,
    out_is_masked_token_mask_ptr: torch.Tensor,
    out_new_token_indices_ptr: torch.Tensor,
    out_hidden_state_mapping_ptr: torch.Tensor,
    query_start_loc_ptr: torch.Tensor,
    query_end_loc_ptr: torch.Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    total_input_tokens: int,
    num_padding_slots_per_request: int,
    shift_input_ids: bool,
    BLOCK_SIZE_TOKENS: int,
) -> None:
    """The target's tokens and the new one of each request, with room for more."""
    del BLOCK_SIZE_TOKENS
    torch.ops._C.copy_and_expand_eagle_inputs_kernel_impl(
        target_token_ids_ptr,
        target_positions_ptr,
        next_token_ids_ptr,
        out_input_ids_ptr,
        out_positions_ptr,
        out_is_rejected_token_mask_ptr,
        out_is_masked_token_mask_ptr,
        out_new_token_indices_ptr,
        out_hidden_state_mapping_ptr,
        query_start_loc_ptr,
        query_end_loc_ptr,
        padding_token_id,
        parallel_drafting_token_id,
        total_input_tokens,
        num_padding_slots_per_request,
        shift_input_ids,
    )


def expand_dflash_inputs(
    next_token_ids_ptr: torch.Tensor,
    target_positions_ptr: torch.Tensor,
    out_input_ids_ptr: torch.Tensor,
    out_context_positions_ptr: torch.Tensor,
    out_query_positions_ptr: torch.Tensor,
    out_context_slot_mapping_ptr: torch.Tensor,
    out_query_slot_mapping_ptr: torch.Tensor,
    out_token_indices_ptr: torch.Tensor,
    block_table_ptr: torch.Tensor,
    block_table_stride: int,
    query_start_loc_ptr: torch.Tensor,
    num_rejected_tokens_ptr: torch.Tensor | int,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    num_speculative_tokens: int,
    total_input_tokens: int,
    BLOCK_SIZE: int,
    HAS_NUM_REJECTED: bool,
) -> None:
    """The context of each request, and one query per draft behind it."""
    del block_table_stride, BLOCK_SIZE
    torch.ops._C.copy_and_expand_dflash_inputs_kernel_impl(
        next_token_ids_ptr,
        target_positions_ptr,
        out_input_ids_ptr,
        out_context_positions_ptr,
        out_query_positions_ptr,
        out_context_slot_mapping_ptr,
        out_query_slot_mapping_ptr,
        out_token_indices_ptr,
        block_table_ptr,
        query_start_loc_ptr,
        num_rejected_tokens_ptr if HAS_NUM_REJECTED else None,
        parallel_drafting_token_id,
        block_size,
        num_query_per_req,
        num_speculative_tokens,
        total_input_tokens,
        HAS_NUM_REJECTED,
    )


# By the kernels' names in the host.
KERNELS: dict[str, Callable[..., Any]] = {
    "expand_kernel": expand,
    "rejection_greedy_sample_kernel": reject_greedy,
    "rejection_random_sample_kernel": reject_random,
    "sample_recovered_tokens_kernel": sample_recovered,
    "eagle_prepare_inputs_padded_kernel": prepare_inputs,
    "eagle_prepare_next_token_padded_kernel": prepare_next_tokens,
    "eagle_step_slot_mapping_metadata_kernel": step,
    "copy_and_expand_eagle_inputs_kernel": expand_eagle_inputs,
    "copy_and_expand_dflash_inputs_kernel": expand_dflash_inputs,
}

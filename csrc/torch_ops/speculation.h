// Functions of speculative decoding behind the registered ops; schemas and names are in
// library.cpp.
#pragma once

#include <ATen/ATen.h>

#include "torch_ops/ops.h"

namespace cpu_backend {

// speculation.cpp
void expand(at::Tensor& output, const at::Tensor& input, const at::Tensor& cu_num_tokens,
            int64_t replace_from, int64_t replace_to);
void reject_greedy(at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
                   const at::Tensor& draft_token_ids, const at::Tensor& target_argmax,
                   const at::Tensor& bonus_token_ids, const OptionalTensor& is_greedy,
                   int64_t max_spec_len);
void reject_random(at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
                   const at::Tensor& draft_token_ids, const OptionalTensor& draft_probs,
                   const at::Tensor& target_probs, const at::Tensor& bonus_token_ids,
                   const at::Tensor& recovered_token_ids, const at::Tensor& uniform_probs,
                   const OptionalTensor& is_greedy, int64_t max_spec_len, int64_t vocab_size,
                   bool no_draft_probs);
void sample_recovered(at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
                      const at::Tensor& draft_token_ids, const OptionalTensor& draft_probs,
                      const at::Tensor& target_probs, const at::Tensor& inv_q, int64_t vocab_size,
                      bool no_draft_probs);
at::Tensor look_up_drafts(const at::Tensor& tokens, const at::Tensor& lengths,
                          at::IntArrayRef requests, int64_t least, int64_t most, int64_t drafts,
                          int64_t max_length);

// speculation_inputs.cpp
void eagle_inputs(const at::Tensor& cu_num_draft_tokens,
                  const at::Tensor& valid_sampled_tokens_count, const at::Tensor& query_start_loc,
                  at::Tensor& token_indices_to_sample, at::Tensor& num_rejected_tokens,
                  int64_t num_reqs);
void eagle_next_tokens(const at::Tensor& sampled_token_ids, const at::Tensor& discard_request_mask,
                       const at::Tensor& backup_next_token_ids, at::Tensor& next_token_ids,
                       at::Tensor& valid_sampled_tokens_count, int64_t vocab_size,
                       int64_t num_sampled_tokens_per_req, int64_t num_reqs);
void eagle_step(const at::Tensor& positions, const at::Tensor& block_table, at::Tensor& seq_lens,
                at::Tensor& out_clamped_positions, at::Tensor& out_slot_mapping, int64_t block_size,
                int64_t max_model_len, int64_t pad_id);
void expand_eagle_inputs(const at::Tensor& target_token_ids, const at::Tensor& target_positions,
                         const at::Tensor& next_token_ids, at::Tensor& out_input_ids,
                         at::Tensor& out_positions, at::Tensor& out_is_rejected_token_mask,
                         at::Tensor& out_is_masked_token_mask, at::Tensor& out_new_token_indices,
                         at::Tensor& out_hidden_state_mapping, const at::Tensor& query_start_loc,
                         const at::Tensor& query_end_loc, int64_t padding_token_id,
                         int64_t parallel_drafting_token_id, int64_t total_input_tokens,
                         int64_t num_padding_slots_per_request, bool shift_input_ids);
void expand_dflash_inputs(const at::Tensor& next_token_ids, const at::Tensor& target_positions,
                          at::Tensor& out_input_ids, at::Tensor& out_context_positions,
                          at::Tensor& out_query_positions, at::Tensor& out_context_slot_mapping,
                          at::Tensor& out_query_slot_mapping, at::Tensor& out_token_indices,
                          const at::Tensor& block_table, const at::Tensor& query_start_loc,
                          const OptionalTensor& num_rejected_tokens,
                          int64_t parallel_drafting_token_id, int64_t block_size,
                          int64_t num_query_per_req, int64_t num_speculative_tokens,
                          int64_t total_input_tokens, bool has_num_rejected);

}  // namespace cpu_backend

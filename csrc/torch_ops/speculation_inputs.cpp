// What a draft model reads: the target's tokens of a step, without those that were rejected.
#include "torch_ops/speculation.h"

#include <algorithm>

#include "torch_ops/integers.h"

namespace cpu_backend {
namespace {

bool* flags(const at::Tensor& tensor, int64_t least, const char* name) {
  typed_data<bool>(tensor, name);
  TORCH_CHECK_VALUE(tensor.numel() >= least, name, " has ", tensor.numel(), " entries, needed are ",
                    least, ".");
  return tensor.data_ptr<bool>();
}

}  // namespace

void eagle_inputs(const at::Tensor& cu_num_draft_tokens,
                  const at::Tensor& valid_sampled_tokens_count, const at::Tensor& query_start_loc,
                  at::Tensor& token_indices_to_sample, at::Tensor& num_rejected_tokens,
                  int64_t num_reqs) {
  const Integers ends(cu_num_draft_tokens, "cu_num_draft_tokens");
  const Integers valid(valid_sampled_tokens_count, "valid_sampled_tokens_count");
  const Integers starts(query_start_loc, "query_start_loc");
  const Integers indices(token_indices_to_sample, "token_indices_to_sample");
  const Integers rejected(num_rejected_tokens, "num_rejected_tokens");
  for (const Integers* each : {&ends, &valid, &indices, &rejected}) each->check_size(num_reqs);
  starts.check_size(num_reqs + 1);
  for (int64_t r = 0; r < num_reqs; ++r) {
    const int64_t drafts = ends[r] - (r > 0 ? ends[r - 1] : 0);
    const int64_t lost = drafts > 0 ? drafts + 1 - valid[r] : 0;
    indices.set(r, starts[r + 1] - 1 - lost);
    rejected.set(r, lost);
  }
}

void eagle_next_tokens(const at::Tensor& sampled_token_ids, const at::Tensor& discard_request_mask,
                       const at::Tensor& backup_next_token_ids, at::Tensor& next_token_ids,
                       at::Tensor& valid_sampled_tokens_count, int64_t vocab_size,
                       int64_t num_sampled_tokens_per_req, int64_t num_reqs) {
  const Integers sampled(sampled_token_ids, "sampled_token_ids");
  const Integers backup(backup_next_token_ids, "backup_next_token_ids");
  const Integers next(next_token_ids, "next_token_ids");
  const Integers valid(valid_sampled_tokens_count, "valid_sampled_tokens_count");
  const bool* discarded = flags(discard_request_mask, num_reqs, "discard_request_mask");
  sampled.check_size(num_reqs * num_sampled_tokens_per_req);
  for (const Integers* each : {&backup, &next, &valid}) each->check_size(num_reqs);
  for (int64_t r = 0; r < num_reqs; ++r) {
    int64_t count = 0, last = backup[r];
    for (int64_t i = 0; !discarded[r] && i < num_sampled_tokens_per_req; ++i) {
      const int64_t token = sampled[r * num_sampled_tokens_per_req + i];
      if (token == -1 || token >= vocab_size) continue;
      ++count;
      last = token;
    }
    next.set(r, last);
    valid.set(r, count);
  }
}

void eagle_step(const at::Tensor& positions, const at::Tensor& block_table, at::Tensor& seq_lens,
                at::Tensor& out_clamped_positions, at::Tensor& out_slot_mapping, int64_t block_size,
                int64_t max_model_len, int64_t pad_id) {
  const Integers position(positions, "positions");
  const Integers lengths(seq_lens, "seq_lens");
  const Integers clamped(out_clamped_positions, "out_clamped_positions");
  const Integers slots(out_slot_mapping, "out_slot_mapping");
  const BlockTable table(block_table, block_size);
  const int64_t requests = position.size();
  for (const Integers* each : {&lengths, &clamped, &slots}) each->check_size(requests);
  TORCH_CHECK_VALUE(block_table.size(0) >= requests, "block_table has ", block_table.size(0),
                    " rows for ", requests, " requests.");
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t next = position[r] + 1;
    const bool fits = next < max_model_len;
    clamped.set(r, fits ? next : 0);
    slots.set(r, fits ? table.slot(r, next) : pad_id);
    lengths.set(r, fits ? std::min(lengths[r] + 1, max_model_len) : 1);
  }
  for (int64_t r = requests; r < slots.size(); ++r) slots.set(r, pad_id);
}

void expand_eagle_inputs(const at::Tensor& target_token_ids, const at::Tensor& target_positions,
                         const at::Tensor& next_token_ids, at::Tensor& out_input_ids,
                         at::Tensor& out_positions, at::Tensor& out_is_rejected_token_mask,
                         at::Tensor& out_is_masked_token_mask, at::Tensor& out_new_token_indices,
                         at::Tensor& out_hidden_state_mapping, const at::Tensor& query_start_loc,
                         const at::Tensor& query_end_loc, int64_t padding_token_id,
                         int64_t parallel_drafting_token_id, int64_t total_input_tokens,
                         int64_t num_padding_slots_per_request, bool shift_input_ids) {
  const Integers tokens(target_token_ids, "target_token_ids");
  const Integers positions(target_positions, "target_positions");
  const Integers next(next_token_ids, "next_token_ids");
  const Integers ids(out_input_ids, "out_input_ids");
  const Integers places(out_positions, "out_positions");
  const Integers new_tokens(out_new_token_indices, "out_new_token_indices");
  const Integers hidden(out_hidden_state_mapping, "out_hidden_state_mapping");
  const Integers starts(query_start_loc, "query_start_loc");
  const Integers ends(query_end_loc, "query_end_loc");
  const int64_t requests = ends.size(), slots = num_padding_slots_per_request;
  const int64_t dropped = shift_input_ids ? 1 : 0;  // of each request's tokens, the first
  next.check_size(requests);
  starts.check_size(requests + 1);
  const int64_t total = starts[requests];
  TORCH_CHECK_VALUE(total <= total_input_tokens, "query_start_loc ends at ", total, " of ",
                    total_input_tokens, " tokens.");
  tokens.check_size(total);
  positions.check_size(total);
  if (shift_input_ids) hidden.check_size(total);
  new_tokens.check_size(requests * slots);
  const int64_t outputs = total + requests * (slots - dropped);
  ids.check_size(outputs);
  places.check_size(outputs);
  bool* is_rejected = flags(out_is_rejected_token_mask, outputs, "out_is_rejected_token_mask");
  bool* is_masked = flags(out_is_masked_token_mask, outputs, "out_is_masked_token_mask");
  for (int64_t r = 0; r < requests; ++r) {
    // Of a request: the tokens that stand, the new one, slots drafted in parallel, the rejected.
    const int64_t begin = starts[r], size = starts[r + 1] - begin;
    const int64_t kept = std::max<int64_t>(0, ends[r] - begin + 1 - dropped);
    const int64_t first = begin + r * (slots - dropped), out_size = size + slots - dropped;
    TORCH_CHECK_VALUE(kept + slots <= out_size, "query_end_loc of request ", r,
                      " lies behind its tokens.");
    for (int64_t j = 0; j < out_size; ++j) {
      const int64_t at = first + j;
      const bool rejected = j >= kept + slots, masked = j > kept && !rejected;
      int64_t id = padding_token_id;
      if (j < kept) id = tokens[begin + dropped + j];
      if (j == kept) id = next[r];
      if (masked) id = parallel_drafting_token_id;
      ids.set(at, id);
      places.set(at, rejected ? 0 : positions[begin] + j);
      is_rejected[at] = rejected;
      is_masked[at] = masked;
      if (j >= kept && !rejected) new_tokens.set(r * slots + j - kept, at);
      if (shift_input_ids && j < size) hidden.set(begin + j, at);
    }
  }
}

void expand_dflash_inputs(const at::Tensor& next_token_ids, const at::Tensor& target_positions,
                          at::Tensor& out_input_ids, at::Tensor& out_context_positions,
                          at::Tensor& out_query_positions, at::Tensor& out_context_slot_mapping,
                          at::Tensor& out_query_slot_mapping, at::Tensor& out_token_indices,
                          const at::Tensor& block_table, const at::Tensor& query_start_loc,
                          const OptionalTensor& num_rejected_tokens,
                          int64_t parallel_drafting_token_id, int64_t block_size,
                          int64_t num_query_per_req, int64_t num_speculative_tokens,
                          int64_t total_input_tokens, bool has_num_rejected) {
  const Integers next(next_token_ids, "next_token_ids");
  const Integers positions(target_positions, "target_positions");
  const Integers ids(out_input_ids, "out_input_ids");
  const Integers context_positions(out_context_positions, "out_context_positions");
  const Integers query_positions(out_query_positions, "out_query_positions");
  const Integers context_slots(out_context_slot_mapping, "out_context_slot_mapping");
  const Integers query_slots(out_query_slot_mapping, "out_query_slot_mapping");
  const Integers samples(out_token_indices, "out_token_indices");
  const Integers starts(query_start_loc, "query_start_loc");
  const BlockTable table(block_table, block_size);
  TORCH_CHECK_VALUE(num_rejected_tokens || !has_num_rejected, "num_rejected_tokens is missing.");
  const Integers rejected(has_num_rejected ? *num_rejected_tokens : next_token_ids,
                          "num_rejected_tokens");
  const int64_t requests = starts.size() - 1, total = starts[requests];
  TORCH_CHECK_VALUE(total <= total_input_tokens, "query_start_loc ends at ", total, " of ",
                    total_input_tokens, " tokens.");
  TORCH_CHECK_VALUE(num_query_per_req <= num_speculative_tokens + 1, num_query_per_req,
                    " queries are more than ", num_speculative_tokens, " drafts and one token.");
  TORCH_CHECK_VALUE(block_table.size(0) >= requests, "block_table has ", block_table.size(0),
                    " rows for ", requests, " requests.");
  for (const Integers* each : {&positions, &context_positions, &context_slots})
    each->check_size(total);
  for (const Integers* each : {&ids, &query_positions, &query_slots})
    each->check_size(requests * num_query_per_req);
  for (const Integers* each : {&next, &rejected}) each->check_size(requests);
  samples.check_size(requests * num_speculative_tokens);
  for (int64_t r = 0; r < requests; ++r) {
    const int64_t last = starts[r + 1] - (has_num_rejected ? rejected[r] : 0) - 1;
    TORCH_CHECK_VALUE(last >= starts[r], "request ", r, " has no token that stands.");
    for (int64_t t = starts[r]; t < starts[r + 1]; ++t) {
      context_positions.set(t, positions[t]);
      context_slots.set(t, table.slot(r, positions[t]));
    }
    for (int64_t i = 0; i < num_query_per_req; ++i) {
      const int64_t at = r * num_query_per_req + i, position = positions[last] + 1 + i;
      query_positions.set(at, position);
      query_slots.set(at, table.slot(r, position));
      ids.set(at, i == 0 ? next[r] : parallel_drafting_token_id);
      if (i > 0) samples.set(r * num_speculative_tokens + i - 1, at);
    }
  }
}

}  // namespace cpu_backend

// The host's attention over keys and values that lie row by row instead of in pages of keys and
// values: its latent attention.  The rows of the step's requests are copied into such pages, and
// the paged kernel runs over them; the layers of this backend write pages at once.
#include "torch_ops/adapters.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

// The keys [length, kv_heads, key_dim] and values [length, kv_heads, value_dim] of each request.
using RowsOfRequests = std::vector<at::Tensor>;

struct Scores {
  double scale, softcap;
  OptionalTensor sinks;  // [heads]
};

at::Tensor int32(const std::vector<int64_t>& values) { return at::tensor(values).to(at::kInt); }

// query [tokens, heads, key_dim] of requests that begin at `starts`; out [tokens, heads,
// value_dim]. A request's queries are its last tokens.
void attend(const at::Tensor& out, const at::Tensor& query, const std::vector<int64_t>& starts,
            const RowsOfRequests& keys, const RowsOfRequests& values, const Scores& scores) {
  constexpr int64_t kPage = 16;
  const auto requests = static_cast<int64_t>(keys.size());
  if (requests == 0) return;
  const int64_t kv_heads = keys[0].size(1), key_dim = keys[0].size(2),
                value_dim = values[0].size(2);
  std::vector<int64_t> lengths, slots, blocks;
  int64_t pages = 0, most = 1;
  for (const at::Tensor& rows : keys) most = std::max(most, ceil_div(rows.size(0), kPage));
  for (const at::Tensor& rows : keys) {
    lengths.push_back(rows.size(0));
    for (int64_t t = 0; t < rows.size(0); ++t) slots.push_back(pages * kPage + t);
    for (int64_t b = 0; b < most; ++b) blocks.push_back(pages + b);
    pages += ceil_div(rows.size(0), kPage);
  }
  const at::Tensor cache =
      at::zeros({pages, kv_heads, kPage * (key_dim + value_dim)}, query.options());
  at::Tensor key_cache = cache.slice(2, 0, kPage * key_dim).unflatten(2, {kPage, key_dim});
  at::Tensor value_cache = cache.slice(2, kPage * key_dim).unflatten(2, {kPage, value_dim});
  reshape_and_cache(at::cat(keys), at::cat(values), key_cache, value_cache, at::tensor(slots), "",
                    1.0, 1.0, "auto");
  const at::Tensor starting = int32(starts), seq_lens = int32(lengths);
  const at::Tensor plan = get_scheduler_metadata(requests, query.size(1), kv_heads, value_dim,
                                                 seq_lens, query.scalar_type(), starting, true, -1,
                                                 "", true, std::nullopt, "auto");
  at::Tensor target = out;
  attention_with_kv_cache(query, key_cache, value_cache, target, starting, seq_lens, scores.scale,
                          true, std::nullopt, -1, int32(blocks).view({requests, most}),
                          scores.softcap, plan, scores.sinks, std::nullopt, 1.0, 1.0, "auto");
}

void check_plain(bool is_cross_attn, int64_t sliding_window_size,
                 const OptionalTensor& encoder_lens, const OptionalTensor& tree_mask) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_cross_attn && sliding_window_size <= 0 && !encoder_lens && !tree_mask,
      "cross-attention, sliding windows, encoder lengths and tree masks are not supported over "
      "rows of keys: take cpu_attention_with_kv_cache for windows.");
}

std::vector<int64_t> numbers(const at::Tensor& tensor) {
  const at::Tensor list = tensor.to(at::kLong).contiguous();
  return {list.const_data_ptr<int64_t>(), list.const_data_ptr<int64_t>() + list.numel()};
}

// The first `length` rows of a request.
at::Tensor slots_of(const at::Tensor& req_to_token, int64_t request, int64_t length) {
  return req_to_token[request].slice(0, 0, length).to(at::kLong);
}

}  // namespace

void mla_decode_kvcache(at::Tensor& out, const at::Tensor& query, const at::Tensor& kv_cache,
                        double scale, const at::Tensor& block_tables, const at::Tensor& seq_lens) {
  TORCH_CHECK_VALUE(kv_cache.dim() == 3 && query.dim() == 3 && out.dim() == 3,
                    "latent attention takes query and output [requests, heads, channels] and a "
                    "cache [blocks, block_size, channels].");
  const int64_t block_size = kv_cache.size(1), value_dim = out.size(2);
  RowsOfRequests keys, values;
  std::vector<int64_t> starts{0};
  const std::vector<int64_t> lengths = numbers(seq_lens);
  for (size_t r = 0; r < lengths.size(); ++r) {
    const at::Tensor blocks =
        slots_of(block_tables, static_cast<int64_t>(r), ceil_div(lengths[r], block_size));
    const at::Tensor rows =
        kv_cache.index_select(0, blocks).flatten(0, 1).slice(0, 0, lengths[r]).unsqueeze(1);
    keys.push_back(rows);
    values.push_back(rows.slice(2, 0, value_dim));
    starts.push_back(static_cast<int64_t>(r) + 1);
  }
  attend(out, query, starts, keys, values, {scale, 0.0, std::nullopt});
}

void decode_attention(const at::Tensor& query, const at::Tensor& k_buffer,
                      const at::Tensor& v_buffer, at::Tensor& output, const OptionalTensor& key,
                      const OptionalTensor& value, const OptionalTensor& loc, const at::Tensor&,
                      const at::Tensor& req_to_token, const at::Tensor& req_pool_indices,
                      const at::Tensor& seq_lens, double sm_scale, double logit_cap,
                      bool is_cross_attn, int64_t sliding_window_size,
                      const OptionalTensor& encoder_lens, const OptionalTensor& sinks) {
  check_plain(is_cross_attn, sliding_window_size, encoder_lens, std::nullopt);
  if (key) {
    TORCH_CHECK_VALUE(value && loc, "a key to be written needs its value and its place (loc).");
    const at::Tensor places = loc->to(at::kLong);
    k_buffer.index_copy_(0, places, *key);
    v_buffer.index_copy_(0, places, *value);
  }
  const std::vector<int64_t> requests = numbers(req_pool_indices), lengths = numbers(seq_lens);
  RowsOfRequests keys, values;
  std::vector<int64_t> starts{0};
  for (size_t r = 0; r < requests.size(); ++r) {
    const at::Tensor slots = slots_of(req_to_token, requests[r], lengths[r]);
    keys.push_back(k_buffer.index_select(0, slots));
    values.push_back(v_buffer.index_select(0, slots));
    starts.push_back(static_cast<int64_t>(r) + 1);
  }
  attend(output, query, starts, keys, values, {sm_scale, logit_cap, sinks});
}

void extend_attention(const at::Tensor& q_extend, const OptionalTensor& k_extend,
                      const OptionalTensor& v_extend, at::Tensor& o_extend,
                      const at::Tensor& k_buffer, const at::Tensor& v_buffer,
                      const at::Tensor& req_to_token, const at::Tensor& req_pool_indices,
                      const at::Tensor& seq_lens, const at::Tensor& extend_seq_lens,
                      const at::Tensor& extend_start_loc, int64_t, double sm_scale,
                      double logit_cap, bool is_cross_attn, int64_t sliding_window_size,
                      const OptionalTensor& encoder_lens, const OptionalTensor& sinks,
                      const OptionalTensor& tree_mask) {
  check_plain(is_cross_attn, sliding_window_size, encoder_lens, tree_mask);
  TORCH_CHECK_VALUE(k_extend && v_extend, "k_extend and v_extend, the new rows, are missing.");
  TORCH_CHECK_NOT_IMPLEMENTED(k_extend->size(1) == k_buffer.size(1), "new keys of ",
                              k_extend->size(1), " heads beside a cache of ", k_buffer.size(1),
                              " are not supported: they must agree.");
  const std::vector<int64_t> requests = numbers(req_pool_indices), lengths = numbers(seq_lens);
  const std::vector<int64_t> added = numbers(extend_seq_lens), begins = numbers(extend_start_loc);
  RowsOfRequests keys, values;
  std::vector<int64_t> starts{0};
  for (size_t r = 0; r < requests.size(); ++r) {
    TORCH_CHECK_VALUE(begins[r] == starts.back() && added[r] <= lengths[r],
                      "extend_start_loc and extend_seq_lens must lay out one request after the "
                      "other, and no request may be shorter than what is new of it.");
    const at::Tensor slots = slots_of(req_to_token, requests[r], lengths[r] - added[r]);
    const auto rows = [&](const at::Tensor& cached, const at::Tensor& fresh) {
      return at::cat({cached.index_select(0, slots), fresh.narrow(0, begins[r], added[r])});
    };
    keys.push_back(rows(k_buffer, *k_extend));
    values.push_back(rows(v_buffer, *v_extend));
    starts.push_back(begins[r] + added[r]);
  }
  attend(o_extend, q_extend, starts, keys, values, {sm_scale, logit_cap, sinks});
}

void concat_and_cache_mla(const at::Tensor& kv_c_normed, const at::Tensor& k_pe,
                          at::Tensor& kv_cache, const at::Tensor& slot_mapping) {
  const at::Tensor rows = at::cat({kv_c_normed, k_pe}, -1).slice(0, 0, slot_mapping.numel());
  check_same_dtype(kv_cache, "kv_cache", rows, "kv_c_normed");
  const at::Tensor taken = slot_mapping.ge(0);  // the others are padding
  kv_cache.view({-1, rows.size(-1)})
      .index_copy_(0, slot_mapping.masked_select(taken).to(at::kLong), rows.index({taken}));
}

}  // namespace cpu_backend

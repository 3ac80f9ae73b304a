// Sparse latent attention: its two caches, the choice of tokens, and attention over those chosen.
//
// A cache of keys has panels [blocks, block_size, channels] as kernels/kv_cache.h has them, one of
// rows is what its shape says.  Block table, lengths and starts are looked up each time a loop
// runs, so a recorded step follows them.
#include "core/attention_plan.h"
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/step_places.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

// [blocks, block_size, channels] with dense blocks; values are none, or the beginning of a row.
PagedKv single_cache(const at::Tensor& cache, int64_t value_dim) {
  TORCH_CHECK_VALUE(
      cache.dim() == 3 && cache.stride(2) == 1 && cache.stride(1) == cache.size(2),
      "the cache must be [blocks, block_size, channels] with dense blocks, its strides are ",
      cache.strides(), ".");
  TORCH_CHECK_VALUE(cache.size(1) % 16 == 0 && cache.size(2) % 16 == 0 && value_dim % 16 == 0,
                    "a cache of ", cache.size(1), " tokens per block and ", cache.size(2),
                    " channels, ", value_dim,
                    " of a value, is not supported: multiples of 16 are.");
  TORCH_CHECK_VALUE(value_dim <= cache.size(2), "a value of ", value_dim,
                    " channels does not lie in a key of ", cache.size(2), ".");
  return {cache.data_ptr(),
          cache.stride(0),
          0,
          static_cast<int>(cache.size(1)),
          static_cast<int>(cache.size(2)),
          static_cast<int>(value_dim)};
}

// rows [tokens, channels] that go into a cache.
Rows rows_to_cache(const at::Tensor& rows, const at::Tensor& cache,
                   const at::Tensor& slot_mapping) {
  const Rows result = rows_of(rows, "rows");
  check_same_dtype(cache, "cache", rows, "rows");
  typed_data<int64_t>(slot_mapping, "slot_mapping");
  TORCH_CHECK_VALUE(result.size == cache.size(2) && result.count >= slot_mapping.numel(), "rows ",
                    rows.sizes(), " do not fit ", slot_mapping.numel(), " slots of a cache ",
                    cache.sizes(), ".");
  return result;
}

// Positions whose scores are one item: so many that fetching the queries again does not count.
constexpr int64_t kScoresPerItem = 1024;

}  // namespace

void cache_keys(const at::Tensor& keys, at::Tensor& cache, const at::Tensor& slot_mapping) {
  const DType dtype = dtype_of(keys, "keys");
  const PagedKv pages = single_cache(cache, 0);
  const Rows k = rows_to_cache(keys, cache, slot_mapping);
  const TokenHeads row{k.data, k.stride, 0};
  parallel_slices(slot_mapping.numel(), row_grain(8 * k.size),
                  [=, slots = StepTensor(slot_mapping)](Slice slice) {
                    const WriteKvArgs args{row, row, pages, slots.data<int64_t>(), 1};
                    kernels().write_kv(dtype, args, slice);
                  });
}

void cache_rows(const at::Tensor& rows, at::Tensor& cache, const at::Tensor& slot_mapping) {
  dtype_of(rows, "rows");
  const PagedKv pages = single_cache(cache, 0);
  const Rows from = rows_to_cache(rows, cache, slot_mapping);
  const auto bytes = static_cast<int64_t>(rows.itemsize());
  parallel_slices(slot_mapping.numel(), row_grain(from.size),
                  [=, slots = StepTensor(slot_mapping)](Slice slice) {
                    for (int64_t t = slice.begin; t < slice.end; ++t) {
                      const int64_t slot = slots.data<int64_t>()[t];
                      if (slot < 0) continue;
                      const int64_t at = slot / pages.block_size * pages.block_stride +
                                         slot % pages.block_size * pages.key_dim;
                      kernels().copy_bytes(
                          static_cast<const char*>(from.data) + t * from.stride * bytes,
                          static_cast<char*>(pages.base) + at * bytes, from.size * bytes);
                    }
                  });
}

void choose_tokens(const at::Tensor& query, const at::Tensor& weights, const at::Tensor& key_cache,
                   const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                   const at::Tensor& block_table, double scale, at::Tensor& scores,
                   at::Tensor& chosen) {
  const DType dtype = dtype_of(query, "query");
  const PagedKv cache = single_cache(key_cache, 0);
  const StepPlaces places(query_start_loc, seq_lens, block_table);
  check_same_dtype(key_cache, "key_cache", query, "query");
  check_same_dtype(weights, "weights", query, "query");
  typed_data<float>(scores, "scores");
  typed_data<int32_t>(chosen, "chosen");
  const Heads q = heads_of(query, cache.key_dim, "query");
  const Rows w = rows_of(weights, "weights");
  TORCH_CHECK_VALUE(w.count == q.tokens && w.size == q.heads, "weights ", weights.sizes(),
                    " do not fit the query ", query.sizes(), ".");
  TORCH_CHECK_VALUE(places.tokens() == q.tokens, "query_start_loc ends at ", places.tokens(),
                    ", the query has ", q.tokens, " tokens.");
  TORCH_CHECK_VALUE(chosen.dim() == 2 && chosen.size(0) >= q.tokens && chosen.size(1) > 0,
                    "chosen ", chosen.sizes(), " has no row for each of ", q.tokens, " tokens.");
  const int64_t room = scores.dim() == 2 ? scores.size(1) : 0;
  TORCH_CHECK_VALUE(scores.dim() == 2 && scores.size(0) > 0 && room % cache.block_size == 0 &&
                        places.longest() <= room,
                    "scores ", scores.sizes(), " must have rows of whole pages of ",
                    cache.block_size, " tokens, with room for ", places.longest(), ".");
  TokenChoiceArgs args{};
  args.query = q;
  args.num_heads = q.heads;
  args.weights = w.data;
  args.weights_stride = w.stride;
  args.scale = static_cast<float>(scale);
  args.cache = cache;
  args.scores = scores.data_ptr<float>();
  args.scores_stride = room;
  args.chosen = chosen.data_ptr<int32_t>();
  args.chosen_stride = args.most = chosen.size(1);
  const KernelTable& table = kernels();
  const int64_t per_item =
      std::max<int64_t>(1, kScoresPerItem / cache.block_size) * cache.block_size;
  for (int64_t first = 0; first < q.tokens; first += scores.size(0)) {
    const int64_t rows = std::min(scores.size(0), q.tokens - first);
    const auto step_args = [=] {
      TokenChoiceArgs step = args;
      step.pages = places.get();
      step.first_token = first;
      return step;
    };
    const auto items = [=] {  // none where all tokens see all that is there
      const int64_t longest = places.longest();
      return longest > args.most ? ceil_div(longest, per_item) : int64_t{0};
    };
    parallel_items([=] { return rows * items(); }, table.score_scratch_floats(cache),
                   [=, score = table.score_tokens](int64_t i, float* scratch) {
                     const int64_t begin = i / rows * per_item;
                     score(dtype, step_args(), first + i % rows, Slice{begin, begin + per_item},
                           scratch);
                   });
    parallel_items(
        [=] { return items() ? rows : int64_t{0}; }, 0,
        [=, choose = table.choose_tokens](int64_t i, float*) { choose(step_args(), first + i); });
  }
}

void sparse_attention(const at::Tensor& query, const at::Tensor& cache, at::Tensor& output,
                      const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                      const at::Tensor& block_table, const at::Tensor& chosen, double scale) {
  const DType dtype = dtype_of(query, "query");
  check_same_dtype(cache, "cache", query, "query");
  check_same_dtype(output, "output", query, "query");
  TORCH_CHECK_VALUE(output.dim() == 3, "output must be [tokens, heads, channels].");
  const PagedKv rows = single_cache(cache, output.size(2));
  const StepPlaces places(query_start_loc, seq_lens, block_table);
  typed_data<int32_t>(chosen, "chosen");
  const Heads q = heads_of(query, rows.key_dim, "query");
  const Heads out = heads_of(output, rows.value_dim, "output");
  TORCH_CHECK_VALUE(out.tokens == q.tokens && out.heads == q.heads && places.tokens() == q.tokens,
                    "output ", output.sizes(), " and the ", places.tokens(),
                    " tokens of query_start_loc do not fit the query ", query.sizes(), ".");
  TORCH_CHECK_VALUE(chosen.dim() == 2 && chosen.size(0) >= q.tokens && chosen.size(1) > 0,
                    "chosen ", chosen.sizes(), " has no row for each of ", q.tokens, " tokens.");
  const KernelTable& table = kernels();
  SparseAttendArgs args{};
  args.query = q;
  args.out = out;
  args.num_heads = q.heads;
  args.scale = static_cast<float>(scale);
  args.cache = rows;
  args.chosen = chosen.const_data_ptr<int32_t>();
  args.chosen_stride = args.most = chosen.size(1);
  const int64_t parts = ceil_div(args.most, kPartitionTokens);
  const int64_t blocks = ceil_div(static_cast<int64_t>(q.heads), kAttendRows);
  // Where there are fewer tokens than threads, threads share a token.  The arithmetic is the same.
  const bool apart = parts > 1 && q.tokens < at::get_num_threads();
  const at::Tensor partials =
      at::empty({apart ? q.tokens * parts * blocks * kAttendRows * (rows.value_dim + 2) : 0},
                query.options().dtype(at::kFloat));
  args.partials = partials.data_ptr<float>();
  const auto step_args = [=] {
    SparseAttendArgs step = args;
    step.pages = places.get();
    return step;
  };
  const int64_t scratch = table.sparse_attend_scratch_floats(rows, q.heads);
  const int64_t sharing = apart ? 1 : table.sharing_tokens(q.heads);
  const int64_t runs = ceil_div(q.tokens, sharing);
  const int64_t tokens = q.tokens, shares = apart ? parts : 1;
  parallel_items([=] { return runs * shares; }, scratch,
                 [=, attend = table.attend_chosen](int64_t i, float* buffer) {
                   // The last tokens of a prompt see most and begin.
                   const int64_t token = (runs - 1 - i / shares) * sharing;
                   const int64_t part = i % shares;
                   const SparseAttendItem item{token, std::min(sharing, tokens - token), part,
                                               apart ? part + 1 : parts, apart};
                   attend(dtype, step_args(), item, buffer);
                 });
  if (!apart) return;
  parallel_items([=] { return tokens * blocks; }, scratch,
                 [=, merge = table.merge_chosen](int64_t i, float* buffer) {
                   merge(dtype, step_args(), i / blocks, i % blocks * kAttendRows, buffer);
                 });
}

}  // namespace cpu_backend

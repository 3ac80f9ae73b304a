// Latent attention over the tokens that an indexer has chosen (DeepSeek V3.2, 2025).
//
// Cache     a row per token, its key; the first value_dim numbers of which are its value.  So what
//           is read of a token that was chosen lies side by side, and nothing of others is read.
// Method    kGathered chosen tokens at a time are copied to a page of kernels/kv_cache.h in
// scratch,
//           in the order of their positions, which all heads attend to as kernels/attention.h has
//           it.  Partitions are of kPartitionTokens chosen tokens.  A token that sees no more than
//           `most` tokens attends to all of them in the same way, and neighbours of that kind
//           share a page: so a result depends neither on the batch nor on how a prompt was cut.
// Numerics  those of kernels/attention.h.
// Threads   none: one item at a time; scratch of sparse_attend_scratch_floats() per thread.
#pragma once

#include "kernels/attention.h"
#include "kernels/step_pages.h"

namespace CPU_BACKEND_NAMESPACE {

// Tokens of a page: its keys and values of DeepSeek V3.2 in bf16 are 136 KiB, an eighth of an L2.
constexpr int64_t kGathered = 64;
// Rows of neighbours that share a page, if one token has fewer heads.
constexpr int64_t kSharingRows = 128;

static inline int64_t sharing_tokens(int64_t num_heads) {
  return num_heads < kSharingRows ? kSharingRows / num_heads : 1;
}

// The page in scratch.
static inline PagedKv gathered_page(const PagedKv& cache, float* page) {
  PagedKv result = cache;
  result.base = page;
  result.block_size = kGathered;
  return result;
}

static inline int64_t gathered_floats(const PagedKv& cache) {
  return kGathered * (static_cast<int64_t>(cache.key_dim) + cache.value_dim);
}

static inline int64_t sparse_attend_scratch_floats(const PagedKv& cache, int64_t num_heads) {
  return gathered_floats(cache) + attend_scratch_floats(gathered_page(cache, nullptr),
                                                        sharing_tokens(num_heads) * num_heads);
}

// Chosen tokens [first, first + count) of one that `chosen` lists, or all tokens if it is null.
template <class T>
void gather_page(const PagedKv& cache, const int32_t* blocks, const int32_t* chosen, int64_t first,
                 int64_t count, const PagedKv& page) {
  const KvBlock<T> block(page, 0, 0);
  const auto row = [&](int64_t i) CPU_BACKEND_LAMBDA {
    const int64_t position = chosen ? chosen[first + i] : first + i;
    return static_cast<const T*>(cache.base) +
           blocks[position / cache.block_size] * cache.block_stride +
           position % cache.block_size * cache.key_dim;
  };
  for (int64_t i = 0; i < count; ++i) {
    const T* const one = row(i);
    write_key(page, block, i, one);
    if constexpr (kPairing<T> == 2) {
      if (i + 1 < count) {
        const T* const other = row(i + 1);
        write_two_values(page, block, i, one, other);
        write_key(page, block, ++i, other);
        continue;
      }
    }
    write_value(page, block, i, one);
  }
}

// Some neighbours in one sequence, or one token, with the tokens that they see.
struct SparseRows {
  TokenPlace place;
  int64_t tokens;
  int64_t visible;        // to the last of them; one less to the one before it
  const int32_t* chosen;  // null: all
};

CPU_BACKEND_INLINE SparseRows sparse_rows(const SparseAttendArgs& args, int64_t token,
                                          int64_t end) {
  SparseRows rows{place_of(args.pages, token), 1, args.most,
                  args.chosen + token * args.chosen_stride};
  const int64_t all_of = args.most - rows.place.position;  // so many neighbours see all
  if (all_of <= 0) return rows;
  if (rows.place.end < end) end = rows.place.end;
  rows.tokens = end - token < all_of ? end - token : all_of;
  rows.visible = rows.place.position + rows.tokens;
  rows.chosen = nullptr;
  return rows;
}

// As kernels/attention.h sees them: a sequence of the visible tokens from `first` on, the last of
// which are the rows'.
struct GatheredStep {
  AttendArgs args;
  int32_t query_start[2], seq_len, block;

  GatheredStep(const SparseAttendArgs& of, const PagedKv& page, float* partials, int64_t tokens)
      : args{}, query_start{0, static_cast<int32_t>(tokens)}, seq_len(0), block(0) {
    args.cache = page;
    args.pages = {1, query_start, &seq_len, &block, 1};
    args.all_causal = true;
    args.num_heads = of.num_heads;
    args.num_kv_heads = 1;
    args.scale = of.scale;
    args.out = of.out;
    args.partials = partials;
  }
  GatheredStep(const GatheredStep&) = delete;
  GatheredStep& operator=(const GatheredStep&) = delete;
};

// One token's index of a partial: those of a partition lie side by side.
static inline int64_t sparse_partial(const SparseAttendArgs& args, int64_t token, int64_t part,
                                     int64_t row) {
  const int64_t parts = ceil_div(args.most, kPartitionTokens);
  return (token * parts + part) * ceil_div(args.num_heads, kAttendRows) + row / kAttendRows;
}

template <class T>
void attend_rows(const SparseAttendArgs& args, const SparseAttendItem& item, int64_t token,
                 const SparseRows& rows, float* base) {
  const int64_t value_dim = args.cache.value_dim, key_dim = args.cache.key_dim;
  const PagedKv page = gathered_page(args.cache, base);
  GatheredStep step(args, page, args.partials, rows.tokens);
  step.args.out.data = args.out.at<T>(token, 0);
  const int64_t count = rows.tokens * args.num_heads;
  const AttendScratch scratch(base + gathered_floats(args.cache), page,
                              sharing_tokens(args.num_heads) * args.num_heads);
  for (int64_t r = 0; r < count; ++r)
    load_operand<T, T>(args.query.at<T>(token + r / args.num_heads, r % args.num_heads), key_dim,
                       scratch.query + r * key_dim);
  // What rows [row, row + kAttendRows) compute with.
  const auto part_of = [&](int64_t row, int64_t part) CPU_BACKEND_LAMBDA {
    AttendScratch local = scratch;
    local.query += row * key_dim;
    local.part = item.apart ? partial_state(step.args, sparse_partial(args, token, part, row))
                            : SoftmaxState{scratch.part.out + row * value_dim,
                                           scratch.part.max + row, scratch.part.sum + row};
    return local;
  };
  scratch.total.reset(count, value_dim);
  for (int64_t part = item.part_begin; part < item.part_end; ++part) {
    const int64_t begin = part * kPartitionTokens;
    const int64_t part_end = begin + kPartitionTokens;
    const int64_t end = part_end < rows.visible ? part_end : rows.visible;
    for (int64_t row = 0; row < count; row += kAttendRows)
      part_of(row, part).part.reset(count - row < kAttendRows ? count - row : kAttendRows,
                                    value_dim);
    for (int64_t first = begin; first < end; first += kGathered) {
      const int64_t gathered = end - first < kGathered ? end - first : kGathered;
      gather_page<T>(args.cache, rows.place.blocks, rows.chosen, first, gathered, page);
      step.seq_len = static_cast<int32_t>(rows.visible - first);
      for (int64_t row = 0; row < count; row += kAttendRows) {
        AttendItem some{};
        some.row_begin = static_cast<int32_t>(row);
        some.row_count =
            static_cast<int32_t>(count - row < kAttendRows ? count - row : kAttendRows);
        attend_partition<T, T>(step.args, some, 0, gathered, gathered, part_of(row, part));
      }
    }
    if (!item.apart) merge_states(scratch.total, scratch.part, count, value_dim);
  }
  if (!item.apart) store_rows<T>(step.args, 0, 0, 0, count, scratch.total);
}

template <class T>
void attend_chosen(const SparseAttendArgs& args, const SparseAttendItem& item, float* scratch) {
  const int64_t end = item.token + item.tokens;
  for (int64_t token = item.token; token < end;) {
    const SparseRows rows = sparse_rows(args, token, end);
    attend_rows<T>(args, item, token, rows, scratch);
    token += rows.tokens;
  }
}

// One token's heads from `row` on, whose partitions were computed apart.
template <class T>
void merge_chosen(const SparseAttendArgs& args, int64_t token, int64_t row, float* base) {
  const PagedKv page = gathered_page(args.cache, base);
  GatheredStep step(args, page, args.partials, 1);
  step.args.out.data = args.out.at<T>(token, 0);
  const AttendScratch scratch(base, page);
  const int64_t left = args.num_heads - row;
  const int64_t count = left < kAttendRows ? left : kAttendRows;
  scratch.total.reset(count, args.cache.value_dim);
  for (int64_t part = 0; part < ceil_div(args.most, kPartitionTokens); ++part)
    merge_states(scratch.total, partial_state(step.args, sparse_partial(args, token, part, row)),
                 count, args.cache.value_dim);
  store_rows<T>(step.args, 0, 0, row, count, scratch.total);
}

}  // namespace CPU_BACKEND_NAMESPACE

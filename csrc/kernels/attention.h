// Attention over the paged KV cache: prefill, decode and chunks of prompts in one kernel.
//
// Rows      the query heads that share a KV head, for one or more tokens of one request:
//           row = token * group + head.  Up to kAttendItemRows rows use each loaded key and value.
// Method    online softmax (Milakov and Gimelshein 2018; FlashAttention, Dao et al. 2022) within
//           partitions of kPartitionTokens tokens at fixed positions of the sequence; partitions
//           are then combined in order.  Whether one thread walks all partitions of a row or
//           several threads take some each, the arithmetic is the same, so a result depends
//           neither on the number of threads nor on the other requests of the batch.
// Scores    scale * q.k, soft cap (c * tanh(s / c)), ALiBi (Press et al. 2022: slope * (j - i)),
//           then the mask: causal, sliding window (`window` tokens, the row's own included).  A
//           request that sees the future among causal ones, an image, sees all of it, as in HF's
//           Gemma 4: (causal or same image) and not further back than the window.
//           A sink adds exp(sink) to the denominator and nothing to the output.
// Codes     fp8 is decoded in registers where it multiplies, or for many rows before.  int8 meets
//           queries and probabilities that were turned into 16-bit integers, per row and page
//           (kernels/tiles/integer_row.h).  A scale of keys goes into the score, one of all
//           values into the output, one per value into the probability.
// Numerics  everything in fp32, one rounding on store; where the target multiplies pairs of bf16,
//           queries meet bf16 keys as they are, and probabilities are rounded to bf16 before they
//           are summed and meet values.  A row that sees no token gives zeros.
// Threads   none: one item at a time; scratch of attend_scratch_floats() per thread.
#pragma once

#include "core/attention_plan.h"
#include "core/view.h"
#include "isa/math.h"
#include "kernels/kv_cache.h"

namespace CPU_BACKEND_NAMESPACE {

// Rows of an item: two matrix tiles; else 4 register tiles of 6 rows, 2 of 12.
constexpr int kAttendItemRows = kHasTiles ? kAttendRows : 24;

constexpr float kMinusInfinity = -__builtin_inff();

CPU_BACKEND_INLINE float exp_scalar(float x) { return exp_nonpositive(broadcast(x))[0]; }

// Running softmax of some rows: unnormalized output, maximum and sum of exponentials.
struct SoftmaxState {
  float* out;  // [rows][value_dim]
  float* max;  // [rows]
  float* sum;  // [rows]

  void reset(int64_t rows, int64_t value_dim) const {
    for (int64_t i = 0; i < rows * value_dim; ++i) out[i] = 0.0f;
    for (int64_t r = 0; r < rows; ++r) {
      max[r] = kMinusInfinity;
      sum[r] = 0.0f;
    }
  }
};

static inline SoftmaxState partial_state(const AttendArgs& args, int64_t index) {
  const int64_t value_dim = args.cache.value_dim;
  float* base = args.partials + index * kAttendRows * (value_dim + 2);
  float* max = base + kAttendRows * value_dim;
  return {base, max, max + kAttendRows};
}

#if defined(CPU_BACKEND_BF16_PAIRS)
constexpr int64_t kDecodedFloats = kDecoded / 2;
#else
constexpr int64_t kDecodedFloats = 0;
#endif

static inline int64_t attend_scratch_floats(const PagedKv& cache, int64_t rows) {
  return kDecodedFloats + kAttendRows * static_cast<int64_t>(cache.block_size) +
         rows * (cache.key_dim + 2 * static_cast<int64_t>(cache.value_dim) + 4);
}

// As what codes meet queries of T: fp8, which bf16 holds exactly, in pairs of it where the target
// multiplies such.
template <class T, class Code>
struct MetAs {
  using Type = Code;
};
#if defined(CPU_BACKEND_BF16_PAIRS)
template <>
struct MetAs<bf16_t, fp8_t> {
  using Type = bf16_t;
};
template <>
struct MetAs<bf16_t, e5m2_t> {
  using Type = bf16_t;
};
#endif

// What a decoded number is worth; see isa/codes.h.
CPU_BACKEND_INLINE float code_unit(KvType type) {
  return type == KvType::kFp8E4M3 ? kUnit<fp8_t> : 1.0f;
}

// Whether the left operand is turned into 16-bit integers, as kernels/tiles/integer_row.h has it.
template <class Code>
constexpr bool kIntegers = kSame<Code, int8_t>;

// The left operand of multiply_panel() among the rows of the scratch, which are kStretch times as
// long in its type.
template <class Code>
CPU_BACKEND_INLINE const Left<Code>* operand(const float* rows) {
  if constexpr (kIntegers<Code>) return integers_of(rows);
  return reinterpret_cast<const Left<Code>*>(rows);
}
template <class Code>
constexpr int64_t kStretch = kSame<Left<Code>, float> ? 1 : 2;

// Numbers of T to a row of the scratch, as they meet keys of `Met`.
template <class T, class Met>
CPU_BACKEND_INLINE void load_operand(const T* from, int64_t size, float* row) {
  if constexpr (kSame<T, Left<Met>>) {
    __builtin_memcpy(row, from, size * sizeof(T));
  } else {
    for_each_vector(size, [&](int64_t i, int n)
                              CPU_BACKEND_LAMBDA { store_n(row + i, load_n(from + i, n), n); });
  }
  if constexpr (kIntegers<Met>) to_integer_row(row, size, size, integer_range(row, size));
}

// The scales of a page's tokens from the first that is read; none of codes that have one for all.
template <class Code>
struct TokenScales {
  const float* keys;
  const float* values;

  CPU_BACKEND_INLINE Vec of_keys(Vec x, int64_t i) const {
    if constexpr (kIntegers<Code>) return x * load(keys + i);
    return x;
  }
};

// Tokens whose values are summed before they meet the sum of those before them.
#if defined(CPU_BACKEND_TILES)
constexpr int64_t kSummedTokens = kTileDepth;
#else
constexpr int64_t kSummedTokens = 16;
#endif

// Where a partition's rows that see nothing before `visible` begin; the mask hides what lies in
// between.  At the distance of whole sums from the page's first token in the partition: so which
// ones are summed together, and with that the result, does not depend on the rows of the item.
CPU_BACKEND_INLINE int64_t segment_begin(int64_t part_begin, int64_t visible, int64_t block_size) {
  if (visible <= part_begin) return part_begin;
  const int64_t page = visible / block_size * block_size;
  const int64_t first = page > part_begin ? page : part_begin;
  return first + (visible - first) / kSummedTokens * kSummedTokens;
}

// What a row may see: [begin, end) of the sequence; position is its own.
struct RowMask {
  int64_t position, begin, end;
};

CPU_BACKEND_INLINE RowMask row_mask(const AttendArgs& args, int32_t request, int64_t token) {
  const int64_t seq_len = args.pages.seq_lens[request];
  const int64_t query_len = args.pages.query_start[request + 1] - args.pages.query_start[request];
  const bool causal = args.causal ? args.causal[request] != 0 : args.all_causal;
  RowMask mask{seq_len - query_len + token, 0, seq_len};
  if (causal) mask.end = mask.position + 1;
  if (args.window > 0) {
    const int64_t first = mask.position - args.window + 1;
    const int64_t last = mask.position + args.window;
    if (first > mask.begin) mask.begin = first;
    if (!args.all_causal && last < mask.end) mask.end = last;
  }
  return mask;
}

// into <- into (+) part, in this order.  One copy for all callers, because which of two products is
// contracted with their sum is the compiler's choice, and must not depend on who merges.
static CPU_BACKEND_NOINLINE void merge_states(const SoftmaxState& into, const SoftmaxState& part,
                                              int64_t rows, int64_t value_dim) {
  for (int64_t r = 0; r < rows; ++r) {
    const float max = into.max[r] > part.max[r] ? into.max[r] : part.max[r];
    if (max == kMinusInfinity) continue;
    const float keep = exp_scalar(into.max[r] - max);
    const float add = exp_scalar(part.max[r] - max);
    into.max[r] = max;
    into.sum[r] = into.sum[r] * keep + part.sum[r] * add;
    float* o = into.out + r * value_dim;
    const float* p = part.out + r * value_dim;
    for_each_vector(value_dim, [&](int64_t i, int) CPU_BACKEND_LAMBDA {
      store(o + i, load(o + i) * keep + load(p + i) * add);
    });
  }
}

template <class T>
void store_rows(const AttendArgs& args, int32_t request, int32_t kv_head, int64_t row_begin,
                int64_t rows, const SoftmaxState& state) {
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int64_t value_dim = args.cache.value_dim;
  const float value_scale = args.cache.value_scale * code_unit(args.cache.type);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = args.pages.query_start[request] + (row_begin + r) / group;
    const int64_t head = kv_head * group + (row_begin + r) % group;
    float scale = 1.0f;
    float sum = state.sum[r];
    if (args.sinks) {
      const float sink = args.sinks[head];
      const float max = state.max[r] > sink ? state.max[r] : sink;
      scale = exp_scalar(state.max[r] - max);
      sum = sum * scale + exp_scalar(sink - max);
    }
    scale = sum > 0.0f ? scale / sum * value_scale : 0.0f;
    T* out = args.out.at<T>(token, head);
    const float* o = state.out + r * value_dim;
    for_each_vector(value_dim, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store_n(out + i, load(o + i) * scale, n);
    });
  }
}

// Products [count] with the keys of positions first, first + 1, ... become scores as the softmax
// sees them; the largest of `best` and them.
template <class Code>
CPU_BACKEND_INLINE Vec mask_row(const AttendArgs& args, const RowMask& mask, float scale,
                                float slope, int64_t first, int64_t count,
                                const TokenScales<Code>& tokens, float* scores, Vec best) {
  const int32_t begin = static_cast<int32_t>(mask.begin - first);
  const int32_t end = static_cast<int32_t>(mask.end - first);
  const float distance = static_cast<float>(first - mask.position);
  for (int64_t i = 0; i < count; i += kLanes) {
    const VecI at = lane_index(static_cast<int32_t>(i));
    Vec s = tokens.of_keys(load(scores + i), i) * scale;
    if (args.softcap > 0.0f) s = args.softcap * tanh(s / args.softcap);
    if (slope != 0.0f) s = s + slope * (__builtin_convertvector(at, Vec) + distance);
    s = select((at >= begin) & (at < end), s, broadcast(kMinusInfinity));
    store(scores + i, s);
    best = cpu_backend::CPU_BACKEND_TARGET::max(best, s);
  }
  return best;
}

// Turns products with keys into what meets values of Code, exponentials or the integers that stand
// for them, rescaling the state where the maximum has grown.
template <class Code>
CPU_BACKEND_INLINE void softmax_row(const AttendArgs& args, const RowMask& mask, float scale,
                                    float slope, int64_t first, int64_t count,
                                    const TokenScales<Code>& tokens, float* scores, float& max,
                                    float& sum, float* out) {
  // A score in memory times `unit` is a logit: scaling costs no pass, nor the store of one.
  const bool plain = args.softcap <= 0.0f && slope == 0.0f && scale > 0.0f;
  const float unit = plain ? scale : 1.0f;
  Vec best = broadcast(kMinusInfinity);
  if (plain && mask.begin <= first && mask.end >= first + round_up(count, kLanes)) {  // most pages
    for (int64_t i = 0; i < count; i += kLanes) {
      const Vec s = tokens.of_keys(load(scores + i), i);
      if constexpr (kIntegers<Code>) store(scores + i, s);
      best = cpu_backend::CPU_BACKEND_TARGET::max(best, s);
    }
  } else {
    best = mask_row(args, mask, plain ? 1.0f : scale, slope, first, count, tokens, scores, best);
  }
  const float largest = max_lanes(best) * unit;
  const float new_max = largest <= max ? max : largest;  // NaN, if it is that
  if (new_max == kMinusInfinity) {  // nothing visible so far: exp(-inf - -inf) would be NaN
    for (int64_t i = 0; i < count; i += kLanes) store(scores + i, Vec{});
    if constexpr (kIntegers<Code>)
      to_integer_row(scores, count, args.cache.block_size, IntegerRange{});
    return;
  }
  Vec total{};
  IntegerRange range{};
  constexpr bool kToBf16 = kSame<Left<Code>, bf16_t>;
  constexpr bool kTo16Bits = kToBf16 || kIntegers<Code>;
  constexpr float kLog2e = 1.44269504088896341f;
  const float factor = kTo16Bits ? unit * kLog2e : unit;
  const float top = kTo16Bits ? new_max * kLog2e : new_max;
  // Behind the last token lie what scales an earlier owner of the page has left.
  const int64_t whole = count / kLanes * kLanes;
  float rest[kLanes] = {};
  if constexpr (kIntegers<Code>)
    for (int64_t i = whole; i < count; ++i) rest[i - whole] = tokens.values[i];
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vec below = load(scores + i) * factor - top;
    Vec p = kTo16Bits ? exp2_for_bf16(below) : exp_nonpositive(below);
    if constexpr (kIntegers<Code>) {
      const Vec scaled = p * load(i < whole ? tokens.values + i : rest);
      range.add(scaled);
      store(scores + i, scaled);
    } else if constexpr (kToBf16) {
      const VecH rounded = narrow_normal_bf16(p);
      store_raw(reinterpret_cast<bf16_t*>(scores) + i, rounded);
      p = widen_bf16(rounded);
    } else {
      store(scores + i, p);
    }
    total = total + p;
  }
  if (new_max != max) {
    const float keep = exp_scalar(max - new_max);
    sum *= keep;
    for_each_vector(args.cache.value_dim, [&](int64_t i, int) CPU_BACKEND_LAMBDA {
      store(out + i, load(out + i) * keep);
    });
    max = new_max;
  }
  sum += sum_lanes(total);
  if constexpr (kIntegers<Code>) to_integer_row(scores, count, args.cache.block_size, range);
}

struct AttendScratch {
  float* decoded;
  float* query;
  float* scores;
  SoftmaxState part;
  SoftmaxState total;

  // Scores are of kAttendRows at a time.
  AttendScratch(float* base, const PagedKv& cache, int64_t rows = kAttendRows) {
    const int64_t outputs = rows * static_cast<int64_t>(cache.value_dim);
    decoded = base;
    query = decoded + kDecodedFloats;
    part.out = query + rows * static_cast<int64_t>(cache.key_dim);
    total.out = part.out + outputs;
    scores = total.out + outputs;
    part.max = scores + kAttendRows * static_cast<int64_t>(cache.block_size);
    part.sum = part.max + rows;
    total.max = part.sum + rows;
    total.sum = total.max + rows;
  }
};

// multiply_columns() for a page of Code whose numbers meet the rows as `Met`.
template <class Met, class Code>
CPU_BACKEND_INLINE void multiply_page(int64_t rows, int64_t count, const float* a, int64_t a_stride,
                                      const PanelBuffer<Code>& b, int64_t k, int64_t column,
                                      int64_t depth, float* c, int64_t c_stride, bool accumulate,
                                      const Code* next, int64_t next_columns, float* decoded) {
  const Left<Met>* const left = operand<Met>(a);
  if constexpr (kSame<Met, Code>) {
    multiply_columns(rows, count, left, kStretch<Met> * a_stride, b, k, column, depth, c, c_stride,
                     accumulate, next, next_columns);
  } else {
    if constexpr (!kHasTiles)
      if (rows <= kFewRows)
        return multiply_columns(rows, count, left, kStretch<Met> * a_stride, b, k, column, depth, c,
                                c_stride, accumulate, next, next_columns);
    multiply_decoded(rows, count, left, kStretch<Met> * a_stride, b, k, column, depth, c, c_stride,
                     accumulate, next, next_columns, reinterpret_cast<bf16_t*>(decoded));
  }
}

// Tokens [begin, end) of one partition; the item goes on to `item_end`.
template <class Code, class Met>
void attend_partition(const AttendArgs& args, const AttendItem& item, int64_t begin, int64_t end,
                      int64_t item_end, const AttendScratch& scratch) {
  const PagedKv& cache = args.cache;
  const float score_scale = args.scale * cache.key_scale * code_unit(cache.type);
  const int64_t key_dim = cache.key_dim;
  const int64_t value_dim = cache.value_dim;
  const int64_t block_size = cache.block_size;
  const int64_t group = args.num_heads / args.num_kv_heads;
  const int32_t* blocks = args.pages.block_table + item.request * args.pages.block_table_stride;
  for (int64_t first = begin; first < end;) {
    const int64_t offset = first % block_size;
    const int64_t in_block = block_size - offset;
    const int64_t count = end - first < in_block ? end - first : in_block;
    const KvBlock<Code> block(cache, blocks[first / block_size], item.kv_head);
    // Pages lie anywhere and are too short for the hardware to fetch ahead: so the next page is
    // fetched while this one is computed, of its keys those that are there.  After an item's last
    // page the first one of what the thread computes next gained nothing (64 requests of 192
    // tokens, Zen 5).
    KvBlock<Code> next{};
    const int64_t tokens_ahead = item_end - (first + count);
    if (count == in_block && tokens_ahead > 0)
      next = KvBlock<Code>(cache, blocks[(first + count) / block_size], item.kv_head);
    if constexpr (kIntegers<Met>)  // of every token one of its key and one of its value
      if (next.key_scales)
        Ahead{reinterpret_cast<const char*>(next.key_scales), 2 * sizeof(float)}.fetch_all(
            block_size);
    multiply_page<Met>(item.row_count, round_up(count, kWholeColumns<Code>), scratch.query, key_dim,
                       block.key, 0, offset, key_dim, scratch.scores, block_size, false,
                       next.key.at, tokens_ahead, scratch.decoded);
    TokenScales<Met> tokens{};
    if constexpr (kIntegers<Met>) tokens = {block.key_scales + offset, block.value_scales + offset};
    for (int32_t r = 0; r < item.row_count; ++r) {
      const int64_t row = item.row_begin + r;
      const float slope =
          args.alibi_slopes ? args.alibi_slopes[item.kv_head * group + row % group] : 0.0f;
      float* scores = scratch.scores + r * block_size;
      softmax_row<Met>(args, row_mask(args, item.request, row / group), score_scale, slope, first,
                       count, tokens, scores, scratch.part.max[r], scratch.part.sum[r],
                       scratch.part.out + r * value_dim);
    }
    multiply_page<Met>(item.row_count, value_dim, scratch.scores, block_size, block.value, offset,
                       0, count, scratch.part.out, value_dim, true, next.value.at, value_dim,
                       scratch.decoded);
    first += count;
  }
}

// Over pages of Code, whose numbers meet queries of T as `Met`.
template <class T, class Code, class Met>
void attend_as(const AttendArgs& args, const AttendItem& item, float* scratch_base) {
  const int64_t key_dim = args.cache.key_dim;
  const int64_t value_dim = args.cache.value_dim;
  const int64_t group = args.num_heads / args.num_kv_heads;
  const AttendScratch scratch(scratch_base, args.cache);

  for (int32_t r = 0; r < item.row_count; ++r) {
    const int64_t row = item.row_begin + r;
    const T* q = args.query.at<T>(args.pages.query_start[item.request] + row / group,
                                  item.kv_head * group + row % group);
    load_operand<T, Met>(q, key_dim, scratch.query + r * key_dim);
  }
  // The first row sees furthest back, the last one furthest ahead.
  const int64_t last_row = item.row_begin + item.row_count - 1;
  const int64_t visible_begin = row_mask(args, item.request, item.row_begin / group).begin;
  const int64_t visible_end = row_mask(args, item.request, last_row / group).end;

  const int64_t parts_end = static_cast<int64_t>(item.part_end) * kPartitionTokens;
  const int64_t item_end = parts_end < visible_end ? parts_end : visible_end;

  scratch.total.reset(item.row_count, value_dim);
  for (int32_t part = item.part_begin; part < item.part_end; ++part) {
    const int64_t part_begin = static_cast<int64_t>(part) * kPartitionTokens;
    const int64_t part_end = part_begin + kPartitionTokens;
    const int64_t begin = segment_begin(part_begin, visible_begin, args.cache.block_size);
    const int64_t end = part_end < visible_end ? part_end : visible_end;
    const bool apart = item.partial >= 0;
    const SoftmaxState state =
        apart ? partial_state(args, item.partial + part - item.part_begin) : scratch.part;
    AttendScratch local = scratch;
    local.part = state;
    state.reset(item.row_count, value_dim);
    attend_partition<Code, Met>(args, item, begin, end, item_end, local);
    if (!apart) merge_states(scratch.total, state, item.row_count, value_dim);
  }
  if (item.partial < 0)
    store_rows<T>(args, item.request, item.kv_head, item.row_begin, item.row_count, scratch.total);
}

template <class T, class Code>
void attend(const AttendArgs& args, const AttendItem& item, float* scratch_base) {
  attend_as<T, Code, typename MetAs<T, Code>::Type>(args, item, scratch_base);
}

template <class T>
void merge_partials(const AttendArgs& args, const MergeItem& item, float* scratch_base) {
  const int64_t value_dim = args.cache.value_dim;
  const AttendScratch scratch(scratch_base, args.cache);
  scratch.total.reset(item.row_count, value_dim);
  for (int32_t part = 0; part < item.parts; ++part)
    merge_states(scratch.total, partial_state(args, item.partial + part), item.row_count,
                 value_dim);
  store_rows<T>(args, item.request, item.kv_head, item.row_begin, item.row_count, scratch.total);
}

}  // namespace CPU_BACKEND_NAMESPACE

// The register tile under every product of this backend: C (=, +=) A * B for a few rows of A and
// two vectors of columns of B.  Weights, cached keys and cached values are all stored as panels,
// so linear layers, Q*K^T and P*V run on this one loop.
//
// Panel<T>  k rows of `width` columns, walked with the row stride of the buffer it sits in:
//           fp32, fp16       element (k, c) at k * stride + c
//           bf16, fp8, int8  several in a word, which is what a vector load gives of each lane:
//             column pairs   columns c and c + kLanes of a row, so that one load gives both vectors
//                            of a step, widened by a shift and a mask, and the loop is as regular
//                            as that of fp32: compilers unroll it without spilling
//             row pairs      rows 2k and 2k + 1 of a column, which is the operand of VDPBF16PS,
//                            BFDOT, AMX and 16-bit integer products, and two of them zipped that of
//                            BFMMLA; also where a panel may be cut in the middle (64-byte vectors,
//                            whose panel is wider than 16 columns).  An odd last row has no
//                            partner: the other half of its word is zero or not read
//             quads, octets  four or eight rows of a column of int8, which SDOT and AMX or SMMLA
//                            multiply at a time
// Numerics  each element of C is a sum of chains of kChainLength multiply-adds, in the order of k,
//           whatever the number of rows or panels taken together: a row's result does not depend
//           on its batch.
// Codes     of int8 are multiplied by integers, see kernels/tiles/integer_row.h.
#pragma once

#include "core/gemm_plan.h"
#include "isa/bf16_pairs.h"
#include "isa/blocks.h"
#include "isa/codes.h"
#include "isa/dot.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int kPanelVecs = 2;
constexpr int kPanelWidth = kPanelVecs * kLanes;

// A weight of n columns in `parts` equal parts, see kernels/epilogue.h.
static inline int64_t panel_count(int64_t n, int parts) {
  return parts * ceil_div(n / parts, kPanelWidth);
}

// The columns of n that a panel holds.
static inline Slice panel_columns(int64_t n, int parts, int64_t panel) {
  const int64_t part = n / parts;
  const int64_t begin = panel / parts * kPanelWidth;
  const int64_t end = begin + kPanelWidth < part ? begin + kPanelWidth : part;
  return {panel % parts * part + begin, panel % parts * part + end};
}

// Numbers in a word; of int8 those of a column that are multiplied at a time.
template <class T>
constexpr int kPerWord = 1;
template <>
constexpr int kPerWord<bf16_t> = 2;
template <>
constexpr int kPerWord<fp8_t> = 2;
template <>
constexpr int kPerWord<e5m2_t> = 2;
template <>
constexpr int kPerWord<int8_t> = kHasBlocks                ? 8
                                 : kHasPlanes || kHasTiles ? 4
                                                           : 2;

#if defined(CPU_BACKEND_BF16_PAIRS) || defined(CPU_BACKEND_TILES)
constexpr bool kPairsOfColumns = false;
#else
constexpr bool kPairsOfColumns = 16 % kPanelWidth == 0;
#endif

// Rows of k that share a word.
template <class T>
constexpr int kPairing = kPairsOfColumns && !kSame<T, int8_t> ? 1 : kPerWord<T>;

// Panels have whole multiples of so many columns.
template <class T>
constexpr int kWholeColumns = kPairing<T> == kPerWord<T> ? kLanes : kPanelWidth;

// Where element (k, column) of a panel lies, in elements.
template <class T>
CPU_BACKEND_INLINE int64_t panel_offset(int64_t k, int64_t column, int64_t stride) {
  if constexpr (kWholeColumns<T> == kPanelWidth) {
    const int64_t in_panel = column % kPanelWidth;
    return k * stride + column - in_panel + in_panel % kLanes * 2 + in_panel / kLanes;
  }
  constexpr int64_t kPair = kPairing<T>;
  return k / kPair * kPair * stride + kPair * column + k % kPair;
}

// Columns come as rows of memory.  Words of T in which they are transposed, kLanes by kLanes, how
// many such squares fill the columns of a panel's words, and what they hold together.
template <class T>
constexpr int kPerSquareWord = sizeof(uint32_t) / sizeof(T);
template <class T>
constexpr int kSquares = kWholeColumns<T> == kLanes ? 1 : 2;
template <class T>
constexpr int64_t kSquareColumns = kSquares<T> * kLanes;
template <class T>
constexpr int64_t kSquareDepth = kLanes * kPerSquareWord<T>;

// kSquareColumns from `column` of a panel of `width` on, kSquareDepth of each; `from` the first
// one, the others n_stride apart.
template <class T>
CPU_BACKEND_NOINLINE void pack_squares(const T* from, int64_t n_stride, T* panel, int64_t column,
                                       int64_t width) {
  constexpr int kPer = kPerSquareWord<T>;
  VecU words[kSquares<T>][kLanes];
  for (int s = 0; s < kSquares<T>; ++s) {
    for (int i = 0; i < kLanes; ++i)
      words[s][i] = load_raw<VecU>(from + (s * kLanes + i) * n_stride);
    transpose(words[s]);
  }
  for (int w = 0; w < kLanes; ++w) {
    T* const first = panel + panel_offset<T>(w * kPer, column, width);
    if constexpr (kPairing<T> == kPer) {
      store_raw(first, words[0][w]);
    } else {
      T* const second = panel + panel_offset<T>(w * kPer + 1, column, width);
      const auto low = [&](int s) CPU_BACKEND_LAMBDA { return words[s][w] & 0xffffu; };
      const auto high = [&](int s) CPU_BACKEND_LAMBDA { return words[s][w] >> 16; };
      if constexpr (kSquares<T> == 1) {
        store_raw(kFirstIsLow ? first : second, narrow_bits(low(0)));
        store_raw(kFirstIsLow ? second : first, narrow_bits(high(0)));
      } else {
        constexpr int kUpper = kFirstIsLow ? 1 : 0;
        store_raw(kFirstIsLow ? first : second, low(1 - kUpper) | low(kUpper) << 16);
        store_raw(kFirstIsLow ? second : first, high(1 - kUpper) | high(kUpper) << 16);
      }
    }
  }
}

// The type in which rows of A meet a panel of T.
template <class T>
struct LeftOf {
  using Type = float;
};
template <>
struct LeftOf<int8_t> {
  using Type = int16_t;
};
#if defined(CPU_BACKEND_BF16_PAIRS)
template <>
struct LeftOf<bf16_t> {
  using Type = bf16_t;
};
#endif
template <class T>
using Left = typename LeftOf<T>::Type;

// Whether two rows at a time meet the panel in blocks of two columns.
#if defined(CPU_BACKEND_BLOCKS)
template <class A>
constexpr bool kInBlocks = kSame<A, bf16_t>;
#else
template <class A>
constexpr bool kInBlocks = false;
#endif

// As many as may meet several panels at a time, or codes that are decoded in registers.
constexpr int kFewRows = kMaxRows / 2;

// In blocks acc[r] and acc[r + 1], for even r, are the products of both rows with columns 0 and 1
// and with columns 2 and 3 of each vector; the last of an odd number of rows is as ever.
template <int kRows, int kVecs, int kPanels>
struct Tile {
  Vec acc[kPanels][kRows][kVecs];

  CPU_BACKEND_INLINE void multiply_add(const float* a, int64_t a_stride, int64_t k, int panel,
                                       const Vec* b) {
    for (int r = 0; r < kRows; ++r) {
      const Vec x = broadcast(a[r * a_stride + k]);
      for (int v = 0; v < kVecs; ++v) acc[panel][r][v] = x * b[v] + acc[panel][r][v];
    }
  }
};

// One step of k for rows of their own, one pair of steps for rows in pairs.
template <class T, int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_step(Tile<kRows, kVecs, kPanels>& tile, const float* a,
                                  int64_t a_stride, int64_t k, const T* b, int panel) {
  Vec w[kVecs];
  if constexpr (kPerWord<T> == 2) {
    static_assert(kVecs == 2, "columns in pairs");
    const auto words = load_pairs(b);
    w[0] = first_of_pair(words);
    w[1] = second_of_pair(words);
  } else {
    for (int v = 0; v < kVecs; ++v) w[v] = load(b + v * kLanes);
  }
  tile.multiply_add(a, a_stride, k, panel, w);
}

template <class T, int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_step_pair(Tile<kRows, kVecs, kPanels>& tile, const float* a,
                                       int64_t a_stride, int64_t k, const T* b, int panel,
                                       bool both) {
  decltype(load_pairs(b)) words[kVecs];
  Vec w[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    words[v] = load_pairs(b + v * 2 * kLanes);
    w[v] = first_of_pair(words[v]);
  }
  tile.multiply_add(a, a_stride, k, panel, w);
  if (!both) return;
  for (int v = 0; v < kVecs; ++v) w[v] = second_of_pair(words[v]);
  tile.multiply_add(a, a_stride, k + 1, panel, w);
}

#if defined(CPU_BACKEND_BF16_PAIRS)
// One pair of steps with bf16 on both sides; without `both` the second of the pair is zero, and
// what b has in its place is not used: it may be NaN.
template <class T, int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_step_pair(Tile<kRows, kVecs, kPanels>& tile, const bf16_t* a,
                                       int64_t a_stride, int64_t k, const T* b, int panel,
                                       bool both) {
  VecU words[kVecs];
  load_bf16_pairs(b, words);
  for (int v = 0; v < kVecs; ++v)
    if (!both) words[v] &= kFirstIsLow ? 0x0000ffffu : 0xffff0000u;
  const auto pair_of = [&](int r) CPU_BACKEND_LAMBDA {
    const bf16_t* from = a + r * a_stride + k;
    const bf16_t single[2] = {*from, bf16_t{}};
    return load_raw<uint32_t>(both ? from : single);
  };
  constexpr int kPaired = kInBlocks<bf16_t> ? kRows / 2 * 2 : 0;
#if defined(CPU_BACKEND_BLOCKS)
  for (int r = 0; r < kPaired; r += 2) {
    const uint32_t row0 = pair_of(r), row1 = pair_of(r + 1);
    const VecU rows{row0, row1, row0, row1};
    for (int v = 0; v < kVecs; ++v) {
      Vec &left = tile.acc[panel][r][v], &right = tile.acc[panel][r + 1][v];
      left = dot_pairs(left, rows, lanes_of<0, 0, 1, 1>(words[v], words[v]));
      right = dot_pairs(right, rows, lanes_of<2, 2, 3, 3>(words[v], words[v]));
    }
  }
#endif
  for (int r = kPaired; r < kRows; ++r) {
    const uint32_t pair = pair_of(r);
    for (int v = 0; v < kVecs; ++v)
      tile.acc[panel][r][v] = dot_pairs(tile.acc[panel][r][v], VecU{} + pair, words[v]);
  }
}
#endif

#if defined(CPU_BACKEND_BLOCKS)
// Two pairs of steps; the second one's part of the panel lies at b_next.
template <class T, int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_step_quad(Tile<kRows, kVecs, kPanels>& tile, const bf16_t* a,
                                       int64_t a_stride, int64_t k, const T* b, const T* b_next,
                                       int panel) {
  auto& acc = tile.acc[panel];
  VecU first[kVecs], second[kVecs];
  load_bf16_pairs(b, first);
  load_bf16_pairs(b_next, second);
  int r = 0;
  for (; r + 2 <= kRows; r += 2) {
    const bf16_t* from = a + r * a_stride + k;
    const VecU rows = load_block(from, from + a_stride);
    for (int v = 0; v < kVecs; ++v) {
      const ColumnBlocks columns(first[v], second[v]);
      acc[r][v] = dot_blocks(acc[r][v], rows, columns.of[0]);
      acc[r + 1][v] = dot_blocks(acc[r + 1][v], rows, columns.of[1]);
    }
  }
  for (; r < kRows; ++r) {
    const bf16_t* from = a + r * a_stride + k;
    for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = dot_pairs(acc[r][v], VecU{} + load_raw<uint32_t>(from), first[v]);
      acc[r][v] = dot_pairs(acc[r][v], VecU{} + load_raw<uint32_t>(from + 2), second[v]);
    }
  }
}
#endif

// What one step of k takes of a panel.
template <class T>
constexpr int64_t kStepBytes = kPanelWidth * static_cast<int64_t>(sizeof(T));

// What comes next, fetched into L2 while this is computed: `rate` bytes for each step of k.  With
// none the hardware fetches ahead, which is best for a single stream of memory.
struct Ahead {
  const char* at;
  int64_t rate;

  static constexpr int64_t kLine = 64;

  template <int64_t kBytes>
  CPU_BACKEND_INLINE void fetch() {
    for (int64_t i = 0; i < kBytes; i += kLine) __builtin_prefetch(at + i, 0, 2);
    at += kBytes;
  }
  CPU_BACKEND_INLINE void fetch_all(int64_t steps) {
    const char* end = at + steps * rate;
    for (const char* line = at; line < end; line += kLine) __builtin_prefetch(line, 0, 2);
    at = end;
  }
};

// Steps, of four at most, that share a line of what is fetched: naming it with each of them cost
// decode attention over 8-bit codes up to an eighth (AVX2).
template <class T>
constexpr int64_t kStepsOfLine = kStepBytes<T> >= Ahead::kLine       ? 1
                                 : 4 * kStepBytes<T> <= Ahead::kLine ? 4
                                                                     : Ahead::kLine / kStepBytes<T>;

// When to fetch: a single tile waits for its own lines, so they come evenly, one with each step (in
// bursts decode attention lost a sixth); several tiles share the lines, so each has few.  A long
// burst fills the buffers in which the lines that are needed now wait as well (32 steps instead of
// 4: fp32 products of 16 and 24 rows took a quarter longer, Zen 4), a short one costs tiles of 6
// rows too many instructions.
enum class Fetch { kEvenly, kInBursts };
constexpr int64_t kBurstSteps = kMaxRows == 12 ? 4 : 32;

// Some steps of one chain.  Unrolled, because a step of 6 x 2 leaves the decoder little to spare:
// with the loop's own instructions and a fetch in each step it reached 78 % of the multiply-adds
// from L1 on a shared Zen 3, so 93 %.
template <Fetch kFetch, class A, class T, int kRows, int kVecs, int kPanels, class Meanwhile>
CPU_BACKEND_INLINE void tile_steps(Tile<kRows, kVecs, kPanels>& tile, const A* a, int64_t a_stride,
                                   int64_t depth, const T* b, int64_t b_stride,
                                   int64_t b_panel_stride, Meanwhile& ahead) {
  int64_t k = 0;
  if constexpr (kPairing<T> == 2) {
    if constexpr (kInBlocks<A>)
      for (; k + 4 <= depth; k += 4, b += 4 * b_stride) {
        if constexpr (kFetch == Fetch::kEvenly) ahead.template fetch<4 * kStepBytes<T>>();
        for (int p = 0; p < kPanels; ++p) {
          const T* row = b + p * b_panel_stride;
          tile_step_quad(tile, a, a_stride, k, row, row + 2 * b_stride, p);
        }
      }
    for (; k + 2 <= depth; k += 2, b += 2 * b_stride) {
      if constexpr (kFetch == Fetch::kEvenly) ahead.template fetch<2 * kStepBytes<T>>();
      for (int p = 0; p < kPanels; ++p)
        tile_step_pair(tile, a, a_stride, k, b + p * b_panel_stride, p, true);
    }
    if (k < depth)
      for (int p = 0; p < kPanels; ++p)
        tile_step_pair(tile, a, a_stride, k, b + p * b_panel_stride, p, false);
  } else {
    const auto step = [&](int64_t at, const T* row) CPU_BACKEND_LAMBDA {
      for (int p = 0; p < kPanels; ++p)
        tile_step<T>(tile, a, a_stride, at, row + p * b_panel_stride, p);
    };
    for (; k + 4 <= depth; k += 4, b += 4 * b_stride)
#pragma GCC unroll 4
      for (int64_t i = 0; i < 4; ++i) {
        if constexpr (kFetch == Fetch::kEvenly)
          if (i % kStepsOfLine<T> == 0) ahead.template fetch<kStepsOfLine<T> * kStepBytes<T>>();
        step(k + i, b + i * b_stride);
      }
    for (; k < depth; ++k, b += b_stride) step(k, b);
  }
}

// What every chain is multiplied with: nothing, or a scale of each column, and then it is always
// added: with a choice, copies of the tile would be contracted differently.
struct Unscaled {};
struct ColumnScales {
  static constexpr int kPanels = 2;  // at most
  Vec of[kPanels][kPanelVecs];
};

// c[p][r][...] (+)= sum over k of a[r][k] * panel_p(k, ...), c[p][r] kVecs vectors.  a is fp32, or
// bf16 where the target multiplies pairs.  Meanwhile: Ahead, or in bursts other work on what is
// next.
template <Fetch kFetch, class A, class T, int kRows, int kVecs, int kPanels, class Meanwhile,
          class Scales>
CPU_BACKEND_NOINLINE void multiply_tile(const A* a, int64_t a_stride, const T* b, int64_t b_stride,
                                        int64_t b_panel_stride, int64_t depth, float* c,
                                        int64_t c_stride, int64_t c_panel_stride, bool accumulate,
                                        Meanwhile& ahead, const Scales& scales) {
  for (int64_t k = 0; k < depth; k += kChainLength) {
    Tile<kRows, kVecs, kPanels> tile{};
    const int64_t steps = depth - k < kChainLength ? depth - k : kChainLength;
    const int64_t part = kFetch == Fetch::kInBursts && ahead.rate ? kBurstSteps : kChainLength;
    for (int64_t i = 0; i < steps; i += part) {
      const int64_t now = steps - i < part ? steps - i : part;
      if constexpr (kFetch == Fetch::kInBursts) ahead.fetch_all(now);
      tile_steps<kFetch>(tile, a + k + i, a_stride, now, b + (k + i) * b_stride, b_stride,
                         b_panel_stride, ahead);
    }
    if constexpr (kInBlocks<A>)
      for (int p = 0; p < kPanels; ++p)
        for (int r = 0; r + 2 <= kRows; r += 2)
          for (int v = 0; v < kVecs; ++v) blocks_to_rows(tile.acc[p][r][v], tile.acc[p][r + 1][v]);
    const bool add = accumulate || k > 0;
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVecs; ++v) {
          float* at = c + p * c_panel_stride + r * c_stride + v * kLanes;
          const Vec chain = tile.acc[p][r][v];
          if constexpr (kSame<Scales, Unscaled>) {
            store(at, add ? load(at) + chain : chain);
          } else {
            store(at, scales.of[p][v] * chain + load(at));
          }
        }
  }
}

// Any number of rows from kLeast to kMaxRows, as a compile-time constant.
template <Fetch kFetch, int kVecs, int kRows = kMaxRows, int kLeast = 1, class A, class T,
          class Meanwhile, class Scales>
CPU_BACKEND_INLINE void multiply_rows(int64_t rows, const A* a, int64_t a_stride, const T* b,
                                      int64_t b_stride, int64_t depth, float* c, int64_t c_stride,
                                      bool accumulate, Meanwhile& ahead, const Scales& scales) {
  if (rows == kRows) {
    multiply_tile<kFetch, A, T, kRows, kVecs, 1>(a, a_stride, b, b_stride, 0, depth, c, c_stride, 0,
                                                 accumulate, ahead, scales);
  } else if constexpr (kRows > kLeast) {
    multiply_rows<kFetch, kVecs, kRows - 1, kLeast>(rows, a, a_stride, b, b_stride, depth, c,
                                                    c_stride, accumulate, ahead, scales);
  }
}

// f(first row, rows) for tiles that differ by at most one row, or by one pair where rows go in
// pairs: 8 rows are 4 + 4, not 6 + 2, because a small tile has too few chains to hide the latency
// of a multiply-add.
template <class A, int kMost = kMaxRows, class F>
CPU_BACKEND_INLINE void for_each_tile(int64_t rows, F f) {
  constexpr int64_t kUnit = kInBlocks<A> ? 2 : 1;
  const int64_t tiles = ceil_div(rows, kMost);
  for (int64_t t = 0; t < tiles; ++t) {
    const Slice units = split(ceil_div(rows, kUnit), tiles, t);
    const int64_t begin = units.begin * kUnit, end = units.end * kUnit;
    f(begin, (end < rows ? end : rows) - begin);
  }
}

// c[rows][columns] (+)= a[rows][depth] * panel; columns is kPanelWidth or a multiple of
// kWholeColumns<T> below it.  done(first row, rows) follows each tile.
// Chains outside of tiles, so that a part of the panel stays in L1 for all rows, lost 2 to 7 % on
// Zen 5: a tile that goes on to the panel's end is a stream that the hardware fetches ahead.
template <class A, class T, class Done>
CPU_BACKEND_INLINE void multiply_tile_by_tile(int64_t rows, int64_t columns, const A* a,
                                              int64_t a_stride, const T* b, int64_t b_stride,
                                              int64_t depth, float* c, int64_t c_stride,
                                              bool accumulate, Ahead ahead, Done done) {
  const int64_t tiles = ceil_div(rows, kMaxRows);
  Ahead none{};
  for_each_tile<A>(rows, [&](int64_t row, int64_t count) CPU_BACKEND_LAMBDA {
    const A* left = a + row * a_stride;
    float* out = c + row * c_stride;
    if (columns < kPanelWidth) {
      if constexpr (kWholeColumns<T> == kLanes)
        multiply_rows<Fetch::kInBursts, 1>(count, left, a_stride, b, b_stride, depth, out, c_stride,
                                           accumulate, none, Unscaled{});
    } else if (ahead.rate && tiles == 1) {
      multiply_rows<Fetch::kEvenly, kPanelVecs>(count, left, a_stride, b, b_stride, depth, out,
                                                c_stride, accumulate, ahead, Unscaled{});
    } else {
      multiply_rows<Fetch::kInBursts, kPanelVecs>(count, left, a_stride, b, b_stride, depth, out,
                                                  c_stride, accumulate, ahead, Unscaled{});
    }
    done(row, count);
  });
}

// As much memory from `next` on, if any, as a panel takes while `rows` rows meet it.
template <class T>
CPU_BACKEND_INLINE Ahead next_panel(const T* next, int64_t rows) {
  return {reinterpret_cast<const char*>(next), next ? kStepBytes<T> / ceil_div(rows, kMaxRows) : 0};
}

// The same with nothing to follow; with `next` its panel is fetched into L2 meanwhile.
template <class A, class T>
void multiply_panel(int64_t rows, int64_t columns, const A* a, int64_t a_stride, const T* b,
                    int64_t b_stride, int64_t depth, float* c, int64_t c_stride, bool accumulate,
                    const T* next) {
  multiply_tile_by_tile(rows, columns, a, a_stride, b, b_stride, depth, c, c_stride, accumulate,
                        next_panel(next, rows), [](int64_t, int64_t) CPU_BACKEND_LAMBDA {});
}

}  // namespace CPU_BACKEND_NAMESPACE

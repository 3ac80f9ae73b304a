// Rows of 16-bit integers by panels of int8 codes: what queries and probabilities are to the keys
// and values of an int8 cache.  Sums of kMaxIntegerDepth products are exact: so a row's result does
// not depend on the rows or panels taken with it.
//
// Pairs     two multiply-adds of 16 bits in one instruction.
// Planes    where products of four bytes are fast (kHasPlanes): x = 256 * upper + lower, both
//           signed as the codes are, eight upper bytes of a row and then their lower ones.  In
//           blocks these are the two rows that meet two columns, so that one row fills a block;
//           else each quad of them meets four columns.
// Tiles     a few rows by several panels side by side, as many as the registers hold: with one
//           panel, a single row spent as much time between its loops as in them.
#pragma once

#include "kernels/tiles/panel_matrix.h"

namespace CPU_BACKEND_NAMESPACE {

// A row of 16-bit integers: fp32 scale, then the numbers over it.
constexpr int64_t kMaxIntegerDepth = 512;  // 512 * 32767 * 127 < 2^31
// As long as eight numbers in planes, so that these are whole vectors of memory.
constexpr int64_t kScaleHalves = kHasPlanes ? 8 : 2;
#if defined(CPU_BACKEND_PLANES)
constexpr float kIntegerLimit = kPlanesLimit;
#else
constexpr float kIntegerLimit = 32767.0f;
#endif

// How far the numbers of a row go.
struct IntegerRange {
  VecI bits{};  // of |x|: in the order of the numbers, infinity and NaN behind them

  CPU_BACKEND_INLINE void add(Vec v) {
    const VecI other = (VecI)as_bits(abs(v));
    bits = other > bits ? other : bits;
  }
  CPU_BACKEND_INLINE float largest() const {
    const int32_t most = max_lanes(bits);
    return load_raw<float>(&most);
  }
  // max|x| / limit; NaN where a number is not finite.
  CPU_BACKEND_INLINE float scale(float limit) const { return largest() / limit + largest() * 0.0f; }
};

template <class T>
CPU_BACKEND_INLINE IntegerRange integer_range(const T* x, int64_t size) {
  IntegerRange range;
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA { range.add(load_n(x + i, n)); });
  return range;
}

// Turns a row of this range, whole vectors, into such integers where it lies; with a scale below
// 2^-126 all count as zero.
CPU_BACKEND_INLINE void to_int16_row(float* x, int64_t size, const IntegerRange& range) {
  const float inverse = range.largest() >= 0x1p-111f ? kIntegerLimit / range.largest() : 0.0f;
  int16_t* row = reinterpret_cast<int16_t*>(x) + kScaleHalves;
#if defined(CPU_BACKEND_PLANES)
  for (int64_t i = 0; i < size; i += 2 * kLanes) {
    const Vec second = i + kLanes < size ? load(x + i + kLanes) : Vec{};
    store_planes(row + i, round_to_int16(load(x + i) * inverse), round_to_int16(second * inverse));
  }
#else
  for (int64_t i = 0; i < size; i += kLanes)
    store_raw(row + i, round_to_int16(load(x + i) * inverse));
#endif
  store_raw(row - kScaleHalves, range.scale(kIntegerLimit));
}

// Panels lie `panel_stride` codes apart.  `next`, unless null, is where as much lies that comes
// next, and is fetched into L2 meanwhile.
struct IntegerProduct {
  const int16_t* a;
  int64_t a_stride;
  const int8_t* b;
  int64_t b_stride, panel_stride;
  float* c;
  int64_t c_stride;
  const int8_t* next;
};

// Steps of k between two turns of the loop: they take whole lines of a panel.
constexpr int64_t kIntegerSteps = kPanelWidth < 16 ? Ahead::kLine / kPanelWidth : 4;

// Steps that are multiplied at a time, rows of a tile at most, and the sums of one of its rows.
#if defined(CPU_BACKEND_PLANES)
constexpr int64_t kIntegerStep = 8;  // a row that ends before has zeros
constexpr int kIntegerRows = 6;      // 24 of 32 registers
template <int kVecs>
constexpr int kIntegerSums = 2 * kVecs;
static_assert(kPanelWidth * kIntegerStep == kIntegerSums<kPanelVecs> * kVectorBytes,
              "a step of a panel");

template <int kRows, int kVecs>
CPU_BACKEND_INLINE void add_planes(VecI (&acc)[kRows][2 * kVecs], const int16_t* a,
                                   int64_t a_stride, const int8_t* b) {
  VecI w[2 * kVecs];
  for (int i = 0; i < 2 * kVecs; ++i) w[i] = load_raw<VecI>(b + i * kVectorBytes);
  for (int r = 0; r < kRows; ++r) {
    const VecI x = load_raw<VecI>(a + r * a_stride);
#if defined(CPU_BACKEND_BLOCKS)
    for (int i = 0; i < 2 * kVecs; ++i) acc[r][i] = dot_signed_blocks(acc[r][i], x, w[i]);
#else
    for (int v = 0; v < kVecs; ++v) {
      VecI &upper = acc[r][v], &lower = acc[r][kVecs + v];
      upper = dot_signed_quad_of<0>(upper, x, w[v]);
      upper = dot_signed_quad_of<1>(upper, x, w[kVecs + v]);
      lower = dot_signed_quad_of<2>(lower, x, w[v]);
      lower = dot_signed_quad_of<3>(lower, x, w[kVecs + v]);
    }
#endif
  }
}

template <int kSums>
CPU_BACKEND_INLINE VecI integer_sum(const VecI (&acc)[kSums], int v) {
#if defined(CPU_BACKEND_BLOCKS)
  VecI upper = acc[2 * v], lower = acc[2 * v + 1];
  blocks_to_rows(upper, lower);
#else
  const VecI upper = acc[v], lower = acc[kSums / 2 + v];
#endif
  return upper * 256 + lower;
}
#else
constexpr int64_t kIntegerStep = 2;
constexpr int kIntegerRows = kMaxRows;
template <int kVecs>
constexpr int kIntegerSums = kVecs;

template <int kVecs>
CPU_BACKEND_INLINE VecI integer_sum(const VecI (&acc)[kVecs], int v) {
  return acc[v];
}
#endif

template <int kRows, int kVecs, int kPanels>
CPU_BACKEND_NOINLINE void multiply_integers(const IntegerProduct& product, int64_t depth,
                                            bool accumulate) {
  const IntegerProduct of = product;  // a copy that no store to c can change
  const int8_t* b = of.b;
  const char* next = reinterpret_cast<const char*>(of.next);
  uint32_t kept = accumulate ? ~0u : 0u;  // bits of what is there
  for (int64_t begin = 0; begin < depth; begin += kMaxIntegerDepth) {
    const int64_t end = depth - begin < kMaxIntegerDepth ? depth : begin + kMaxIntegerDepth;
    VecI acc[kPanels][kRows][kIntegerSums<kVecs>];
    for (auto& panel : acc)
      for (auto& row : panel)
        for (VecI& sum : row) sum = VecI{};
    const auto step = [&](int64_t k) CPU_BACKEND_LAMBDA {
      for (int p = 0; p < kPanels; ++p) {
#if defined(CPU_BACKEND_PLANES)
        add_planes<kRows, kVecs>(acc[p], of.a + k, of.a_stride, b + p * of.panel_stride);
#else
        VecI w[kVecs];
        for (int v = 0; v < kVecs; ++v) w[v] = load_pairs(b + p * of.panel_stride + v * 2 * kLanes);
        for (int r = 0; r < kRows; ++r) {
          const VecI x = broadcast(load_raw<int32_t>(of.a + r * of.a_stride + k));
          for (int v = 0; v < kVecs; ++v) acc[p][r][v] = dot_pairs_in_place(acc[p][r][v], x, w[v]);
        }
#endif
      }
      b += kIntegerStep * of.b_stride;
    };
    int64_t k = begin;
    for (; k + kIntegerSteps <= end; k += kIntegerSteps) {
      if (next) {
        for (int p = 0; p < kPanels; ++p)
          for (int64_t i = 0; i < kIntegerSteps * kPanelWidth; i += Ahead::kLine)
            __builtin_prefetch(next + p * of.panel_stride + i, 0, 2);
        next += kIntegerSteps * kPanelWidth;
      }
#pragma GCC unroll 4
      for (int64_t i = 0; i < kIntegerSteps; i += kIntegerStep) step(k + i);
    }
    for (; k < end; k += kIntegerStep) step(k);
    // One expression for all cases, so that tiles of all sizes contract it to a multiply-add.
    for (int r = 0; r < kRows; ++r) {
      const float scale = load_raw<float>(of.a + r * of.a_stride - kScaleHalves);
      for (int p = 0; p < kPanels; ++p)
        for (int v = 0; v < kVecs; ++v) {
          float* at = of.c + p * kPanelWidth + r * of.c_stride + v * kLanes;
          const Vec before = from_bits(as_bits(load(at)) & kept);
          store(at, before + from_int(integer_sum(acc[p][r], v)) * scale);
        }
    }
    kept = ~0u;
  }
}

// Up to kIntegerRows / kPanels rows, as a compile-time constant.
template <int kVecs, int kPanels, int kRows = kIntegerRows / kPanels>
CPU_BACKEND_INLINE void multiply_integer_rows(int64_t rows, const IntegerProduct& of, int64_t depth,
                                              bool accumulate) {
  if (rows == kRows) {
    multiply_integers<kRows, kVecs, kPanels>(of, depth, accumulate);
  } else if constexpr (kRows > 1) {
    multiply_integer_rows<kVecs, kPanels, kRows - 1>(rows, of, depth, accumulate);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

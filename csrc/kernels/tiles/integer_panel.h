// Rows of 16-bit integers (kernels/tiles/integer_row.h) by panels of int8 codes in registers: a few
// rows by several panels side by side, as many as the registers hold.  With one panel, a single row
// spent as much time between its loops as in them.
#pragma once

#include "kernels/tiles/integer_row.h"
#include "kernels/tiles/panel.h"

namespace CPU_BACKEND_NAMESPACE {

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

// before + sum * scale, where `kept` has the bits of what is there: one expression for all cases,
// so that tiles of all sizes contract it to a multiply-add.
CPU_BACKEND_INLINE void add_scaled(float* at, uint32_t kept, VecI sum, float scale) {
  const Vec before = from_bits(as_bits(load(at)) & kept);
  store(at, before + from_int(sum) * scale);
}

#if !defined(CPU_BACKEND_TILES)
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
    for (int r = 0; r < kRows; ++r) {
      const float scale = integer_scale(of.a + r * of.a_stride, of.a_stride);
      for (int p = 0; p < kPanels; ++p)
        for (int v = 0; v < kVecs; ++v)
          add_scaled(of.c + p * kPanelWidth + r * of.c_stride + v * kLanes, kept,
                     integer_sum(acc[p][r], v), scale);
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
#endif

}  // namespace CPU_BACKEND_NAMESPACE

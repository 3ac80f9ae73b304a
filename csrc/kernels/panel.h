// The register tile under every product of this backend: C (=, +=) A * B for a few rows of A and
// two vectors of columns of B.  Weights, cached keys and cached values are all stored as panels,
// so linear layers, Q*K^T and P*V run on this one loop.
//
// Panel<T>  k rows of `width` columns, walked with the row stride of the buffer it sits in:
//           fp32, fp16   element (k, c) at k * stride + c
//           bf16         rows in pairs, (k, c) at (k/2) * 2*stride + 2*c + (k & 1): one 32-bit word
//                        holds both, so widening is one shift and one mask instead of a shuffle,
//                        and it is the order in which VDPBF16PS and AMX want their operand.
//                        An odd last row has no partner; the other half of its word is not read.
// Numerics  each element of C is a sum of chains of kChainLength multiply-adds, in the order of k,
//           whatever the number of rows or panels taken together: a row's result does not depend
//           on its batch.
#pragma once

#include "core/slice.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int kPanelVecs = 2;
constexpr int kPanelWidth = kPanelVecs * kLanes;
// Panels that a single row reads side by side: 4 x 2 independent chains hide the latency of the
// multiply-add (4 cycles, two per cycle), and four streams keep the prefetchers busy.
constexpr int kWidePanels = 4;

// One chain over all of k loses up to 5 times what torch's blocked sums lose at k = 1536; chains of
// 128 stay within twice that and cost about 2 % (one load, add and store per 128 steps).
constexpr int64_t kChainLength = 128;

// Rows of k that share one word.
template <class T>
constexpr int kPairing = 1;
template <>
constexpr int kPairing<bf16_t> = 2;

// Where element (k, column) of a panel lies, in elements.
template <class T>
CPU_BACKEND_INLINE int64_t panel_offset(int64_t k, int64_t column, int64_t stride) {
  constexpr int64_t kPair = kPairing<T>;
  return k / kPair * kPair * stride + kPair * column + k % kPair;
}

// Elements a panel of k rows takes.
template <class T>
constexpr int64_t panel_elements(int64_t k, int64_t width) {
  return round_up(k, kPairing<T>) * width;
}

// The pair lies in memory order, so the even row is the low half of the 32-bit value on
// little-endian machines and the high half on big-endian ones.
constexpr bool kEvenIsLow = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

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

// One step of k for fp32 and fp16, one pair of steps for bf16.
template <class T, int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_step(Tile<kRows, kVecs, kPanels>& tile, const float* a,
                                  int64_t a_stride, int64_t k, const T* b, int panel) {
  Vec w[kVecs];
  for (int v = 0; v < kVecs; ++v) w[v] = load(b + v * kLanes);
  tile.multiply_add(a, a_stride, k, panel, w);
}

template <int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_step_pair(Tile<kRows, kVecs, kPanels>& tile, const float* a,
                                       int64_t a_stride, int64_t k, const bf16_t* b, int panel,
                                       bool both) {
  VecU words[kVecs];
  Vec w[kVecs];
  for (int v = 0; v < kVecs; ++v) {
    words[v] = load_raw<VecU>(b + v * 2 * kLanes);
    w[v] = from_bits(kEvenIsLow ? words[v] << 16 : words[v] & 0xffff0000u);
  }
  tile.multiply_add(a, a_stride, k, panel, w);
  if (!both) return;
  for (int v = 0; v < kVecs; ++v)
    w[v] = from_bits(kEvenIsLow ? words[v] & 0xffff0000u : words[v] << 16);
  tile.multiply_add(a, a_stride, k + 1, panel, w);
}

// Rows [k, k + depth) of the panels, from zero.
template <class T, int kRows, int kVecs, int kPanels>
CPU_BACKEND_INLINE void tile_steps(Tile<kRows, kVecs, kPanels>& tile, const float* a,
                                   int64_t a_stride, int64_t k, int64_t depth, const T* b,
                                   int64_t b_stride, int64_t b_panel_stride) {
  const int64_t end = k + depth;
  const int64_t step = kPairing<T> * b_stride;
  if constexpr (kPairing<T> == 2) {
    for (; k + 2 <= end; k += 2, b += step)
      for (int p = 0; p < kPanels; ++p)
        tile_step_pair(tile, a, a_stride, k, b + p * b_panel_stride, p, true);
    if (k < end)
      for (int p = 0; p < kPanels; ++p)
        tile_step_pair(tile, a, a_stride, k, b + p * b_panel_stride, p, false);
  } else {
    for (; k < end; ++k, b += step)
      for (int p = 0; p < kPanels; ++p)
        tile_step<T>(tile, a, a_stride, k, b + p * b_panel_stride, p);
  }
}

// c[r][p * kVecs * kLanes + ...] (+)= sum over k of a[r][k] * panel_p(k, ...).
template <class T, int kRows, int kVecs, int kPanels>
void multiply_tile(const float* a, int64_t a_stride, const T* b, int64_t b_stride,
                   int64_t b_panel_stride, int64_t depth, float* c, int64_t c_stride,
                   bool accumulate) {
  for (int64_t k = 0; k < depth; k += kChainLength) {
    Tile<kRows, kVecs, kPanels> tile{};
    const int64_t steps = depth - k < kChainLength ? depth - k : kChainLength;
    tile_steps(tile, a, a_stride, k, steps, b + k * b_stride, b_stride, b_panel_stride);
    const bool add = accumulate || k > 0;
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kVecs; ++v) {
          float* at = c + r * c_stride + (p * kVecs + v) * kLanes;
          store(at, add ? load(at) + tile.acc[p][r][v] : tile.acc[p][r][v]);
        }
  }
}

// Any number of rows up to kMaxRows, as a compile-time constant.
template <class T, int kVecs, int kRows = kMaxRows>
CPU_BACKEND_INLINE void multiply_rows(int rows, const float* a, int64_t a_stride, const T* b,
                                      int64_t b_stride, int64_t depth, float* c, int64_t c_stride,
                                      bool accumulate) {
  if (rows == kRows) {
    multiply_tile<T, kRows, kVecs, 1>(a, a_stride, b, b_stride, 0, depth, c, c_stride, accumulate);
  } else if constexpr (kRows > 1) {
    multiply_rows<T, kVecs, kRows - 1>(rows, a, a_stride, b, b_stride, depth, c, c_stride,
                                       accumulate);
  }
}

// c[rows][columns] (+)= a[rows][depth] * panel; columns is a multiple of kLanes.
template <class T>
void multiply_panel(int64_t rows, int64_t columns, const float* a, int64_t a_stride, const T* b,
                    int64_t b_stride, int64_t depth, float* c, int64_t c_stride, bool accumulate) {
  constexpr int64_t kPair = kPairing<T>;
  for (int64_t r = 0; r < rows; r += kMaxRows) {
    const int count = static_cast<int>(rows - r < kMaxRows ? rows - r : kMaxRows);
    int64_t n = 0;
    for (; n + kPanelWidth <= columns; n += kPanelWidth)
      multiply_rows<T, kPanelVecs>(count, a + r * a_stride, a_stride, b + n * kPair, b_stride,
                                   depth, c + r * c_stride + n, c_stride, accumulate);
    for (; n < columns; n += kLanes)
      multiply_rows<T, 1>(count, a + r * a_stride, a_stride, b + n * kPair, b_stride, depth,
                          c + r * c_stride + n, c_stride, accumulate);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

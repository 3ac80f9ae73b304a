// Rows of activations on their way to the panels of a weight, and how many go together.
#pragma once

#include "core/gemm_plan.h"
#include "kernels/panel.h"
#include "kernels/panel_tiles.h"

namespace CPU_BACKEND_NAMESPACE {

// Whether rows of T meet their panels in matrix tiles.
#if defined(CPU_BACKEND_TILES)
template <class T>
constexpr bool kInTiles = kSame<T, bf16_t>;
#else
template <class T>
constexpr bool kInTiles = false;
#endif

// Whether a tile's rows of a, which are read where they lie, push each other out of L1: x86 has 8
// ways (12 since Ice Lake) of 4 KiB, so more than 8 rows with such a distance share the lines of
// one set.  Copied apart once for all panels, products of 12 rows took 0.80 to 0.88 of the time and
// those of 256 and 1,024 rows 0.89 to 0.95 (2048 to 8192 channels, fp32 and bf16, Zen 4; 6 rows of
// AVX2 gained nothing).
template <class T>
bool rows_collide(int64_t m, int64_t stride) {
  constexpr int64_t kWays = 8, kWayBytes = 4096;
  // A pair of tiles loads a line of 32 rows each.
  if constexpr (kInTiles<T>) return m > kWays && stride * sizeof(T) % kWayBytes == 0;
  constexpr bool kInPlace = kSame<T, Left<T>>;
  return kInPlace && kMaxRows > kWays && m > kWays && stride * sizeof(T) % kWayBytes == 0;
}

// Some rows of a, as deep as they are taken at a time.
template <class T>
struct TakenRows {
  const Left<T>* a;
  int64_t a_stride;
  int64_t count;
  int64_t size;      // channels of a row, of which these are
  int64_t k, depth;  // [k, k + depth)
};

// Channels [rows.k, rows.k + rows.depth), of which `a` is the first.  Rows that have the type
// already are read where they lie, others are widened into `wide`.
template <class T>
void take_rows(TakenRows<T>& rows, const T* a, int64_t a_stride, float* wide) {
  if constexpr (kSame<T, Left<T>>) {
    rows.a = a;
    rows.a_stride = a_stride;
  } else {
    rows.a = wide;
    rows.a_stride = padded_depth(rows.depth);
    for (int64_t r = 0; r < rows.count; ++r)
      for_each_vector(rows.depth, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
        store_n(wide + r * rows.a_stride + i, load_n(a + r * a_stride + i, n), n);
      });
  }
}

#if defined(CPU_BACKEND_TILES)
// Tiles read whole multiples of their depth: where a row has none, a copy ends in zeros.
template <>
inline void take_rows(TakenRows<bf16_t>& rows, const bf16_t* a, int64_t a_stride, float* scratch) {
  const int64_t padded = round_up(rows.depth, kTileDepth);
  rows.a = a;
  rows.a_stride = a_stride;
  if (padded > rows.depth && rows.size % kTileDepth != 0) {
    bf16_t* copy = reinterpret_cast<bf16_t*>(scratch);
    for (int64_t r = 0; r < rows.count; ++r)
      for (int64_t k = 0; k < padded; ++k)
        copy[r * padded + k] = k < rows.depth ? a[r * a_stride + k] : bf16_t{};
    rows.a = copy;
    rows.a_stride = padded;
  }
}
#endif

// Rows of one item of m; decoded: the panels are, for each item anew.
template <class T>
int64_t gemm_item_rows(int64_t m, int64_t k, bool decoded) {
  if constexpr (kInTiles<T>) return tile_item_rows(m);
  return gemm_rows(m, k, sizeof(Left<T>), decoded ? sizeof(Left<T>) : sizeof(T));
}

// How deep they are taken at a time.
template <class T>
int64_t taken_depth(int64_t rows, int64_t k) {
#if defined(CPU_BACKEND_TILES)
  // Where they lie: a quarter of L2, which is 2 MiB on every CPU with such tiles.
  constexpr int64_t kElements = 1 << 18;
  if (kInTiles<T> && k % kTileDepth == 0)
    return rows * k <= kElements ? k : kElements / rows / kTileDepth * kTileDepth;
#endif
  return gemm_depth(rows, k, sizeof(Left<T>));
}

// Panels that few rows take side by side, as many as the registers hold: they alone have too few
// independent multiply-adds to hide the latency of one (4 cycles, two per cycle), and each panel is
// one more stream of memory.  Three rows with two panels would need 17 of 16 registers.  Fetching
// the streams ahead, as rows of quantized weights do, lost up to 8 % on Zen 5.
constexpr int64_t panels_at_once(int64_t rows) {
  if (kMaxRows == 12) return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
  return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

template <int kCount>
struct Count {
  static constexpr int value = kCount;
};

// f(rows, panels) as constants, for up to kFewRows rows of at most kMostPanels panels.
template <int kMostPanels, int kRows = kFewRows, class F>
CPU_BACKEND_INLINE void with_few_rows(int64_t rows, int64_t panels, F f) {
  if (rows < kRows) {
    if constexpr (kRows > 1) with_few_rows<kMostPanels, kRows - 1>(rows, panels, f);
    return;
  }
  constexpr int64_t kPanels =
      panels_at_once(kRows) < kMostPanels ? panels_at_once(kRows) : kMostPanels;
  if constexpr (kPanels == 4) {
    if (panels == 4) return f(Count<kRows>{}, Count<4>{});
    if (panels == 3) return f(Count<kRows>{}, Count<3>{});
  }
  if constexpr (kPanels > 1)
    if (panels == 2) return f(Count<kRows>{}, Count<2>{});
  f(Count<kRows>{}, Count<1>{});
}

}  // namespace CPU_BACKEND_NAMESPACE

// Rows of activations on their way to the panels of a weight, and how many go together.
#pragma once

#include "core/gemm_plan.h"
#include "kernels/tiles/panel.h"
#include "kernels/tiles/panel_matrix.h"

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

// Some rows of activations, and as deep as they are taken at a time.
template <class T>
struct TakenRows {
  const T* from;
  int64_t from_stride;
  int64_t count;
  int64_t size;              // channels of a row, of which these are
  int64_t k = 0, depth = 0;  // [k, k + depth)
  const Left<T>* a = nullptr;
  int64_t a_stride = 0;

  // Those that have the type already are read where they lie, others are widened into scratch.
  void take(float* scratch) {
    const T* const first = from + k;
    a_stride = from_stride;
    if constexpr (!kSame<T, Left<T>>) {
      a = scratch;
      a_stride = padded_depth(depth);
      for (int64_t r = 0; r < count; ++r)
        for_each_vector(depth, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
          store_n(scratch + r * a_stride + i, load_n(first + r * from_stride + i, n), n);
        });
    } else {
      a = first;
      if constexpr (kInTiles<T>) end_in_zeros(reinterpret_cast<Left<T>*>(scratch));
    }
  }

 private:
  // Tiles read whole multiples of their depth: where a row has none, a copy ends in zeros.
  void end_in_zeros([[maybe_unused]] Left<T>* copy) {
#if defined(CPU_BACKEND_TILES)
    const int64_t padded = round_up(depth, kTileDepth);
    if (padded == depth || size % kTileDepth == 0) return;
    for (int64_t r = 0; r < count; ++r)
      for (int64_t i = 0; i < padded; ++i)
        copy[r * padded + i] = i < depth ? a[r * a_stride + i] : Left<T>{};
    a = copy;
    a_stride = padded;
#endif
  }
};

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

// What the formats have in common that meet floats.
template <class T>
class MeetsFloats {
 public:
  // decoded: panels are, for each item anew.
  MeetsFloats(int64_t k, bool decoded) : k_(k), decoded_(decoded) {}

  TakenRows<T> rows(const GemmArgs& args, Slice rows) const {
    return {static_cast<const T*>(args.a) + rows.begin * args.a_stride, args.a_stride,
            rows.end - rows.begin, k_};
  }
  void take(TakenRows<T>& rows, float* scratch) const { rows.take(scratch); }

  int64_t item_rows(int64_t m) const { return gemm_item_rows<T>(m, k_, decoded_); }
  int64_t tile_rows() const { return kMaxRows; }
  int64_t depth(int64_t count) const { return taken_depth<T>(count, k_); }
  int64_t at_once(int64_t count) const { return panels_at_once(count); }
  int64_t stored_together(int64_t count, bool) const {
    constexpr int64_t kTogether = kInTiles<T> ? 8 : 1;
    return at_once(count) > kTogether ? at_once(count) : kTogether;
  }

 protected:
  int64_t k_;

 private:
  bool decoded_;
};

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

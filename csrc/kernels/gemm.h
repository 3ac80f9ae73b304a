// Linear layers: c[m][n] = sum_k a[m][k] * weight[n][k], weight packed once at load; then what
// kernels/epilogue.h describes.
//
// Packed    panels of kPanelWidth columns of n (see kernels/panel.h), one after the other; columns
//           past n are zeros.  The storage type is the checkpoint's: fp32, bf16 or fp16.
// Blocking  rows of a are widened to fp32 once for all panels, as deep as they fit L2; then each
//           panel streams past them, widened in registers.  Widening a block of the panel into L1
//           first (Goto and van de Geijn 2008) was tried and lost: the widening hides behind the
//           multiply-adds (91 to 94 % of the peak against 94 % of fp32, Zen 3, 6 x 2 tile), while
//           short blocks interrupt the hardware's prefetching.
// Shapes    any m, n, k >= 1.
// Numerics  fp32 accumulation in chains of kChainLength in the order of k, whatever the blocks.
// Threads   none: rows x panels given by the caller; scratch of gemm_scratch_floats() per thread.
#pragma once

#include "core/gemm_plan.h"
#include "core/view.h"
#include "kernels/epilogue.h"
#include "kernels/panel.h"
#include "kernels/panel_tiles.h"

namespace CPU_BACKEND_NAMESPACE {

// Products that wait for the rest of their depth, or to be stored: 64 KiB; with tiles a quarter of
// L2.
constexpr int64_t kProductFloats = kHasTiles ? 131072 : 16384;

constexpr int64_t gemm_scratch_floats() { return kActivationFloats + kProductFloats; }

// Rows of k that a packed panel is padded to, with zeros.
#if defined(CPU_BACKEND_TILES)
template <class T>
constexpr int64_t kDepthMultiple = sizeof(T) == 2 && kPairing<T> == 2 ? kTileDepth : 1;
#else
template <class T>
constexpr int64_t kDepthMultiple = kPairing<T>;
#endif

template <class T>
constexpr int64_t packed_panel_elements(int64_t k) {
  return round_up(k, kDepthMultiple<T>) * kPanelWidth;
}

template <class T>
int64_t packed_elements(int64_t n, int64_t k, int parts) {
  return panel_count(n, parts) * packed_panel_elements<T>(k);
}

template <class T>
void pack_weight(const PackArgs& args, Slice panels) {
  constexpr int64_t kColumns = kSquareColumns<T>, kDepth = kSquareDepth<T>;
  const T* weight = static_cast<const T*>(args.weight);
  const int64_t elements = packed_panel_elements<T>(args.k);
  const int64_t depth = args.k_stride == 1 ? args.k / kDepth * kDepth : 0;
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    T* const packed = static_cast<T*>(args.packed) + p * elements;
    const Slice columns = panel_columns(args.n, args.parts, p);
    if (columns.end - columns.begin < kPanelWidth) {
      for (int64_t i = 0; i < elements; ++i) packed[i] = T{};
    } else {  // rows of padding
      for (int64_t i = args.k / kDepthMultiple<T> * kDepthMultiple<T> * kPanelWidth; i < elements;
           ++i)
        packed[i] = T{};
    }
    for (int64_t c = columns.begin; c < columns.end; c += kColumns) {
      const T* const from = weight + c * args.n_stride;
      const int64_t column = c - columns.begin;
      const int64_t some = columns.end - c < kColumns ? columns.end - c : kColumns;
      const int64_t transposed = some == kColumns ? depth : 0;
      for (int64_t k = 0; k < transposed; k += kDepth)
        pack_squares<T>(from + k, args.n_stride, packed + k * kPanelWidth, column, kPanelWidth);
      for (int64_t k = transposed; k < args.k; ++k) {
        for (int64_t i = 0; i < some; ++i)
          packed[panel_offset<T>(k, column + i, kPanelWidth)] =
              from[i * args.n_stride + k * args.k_stride];
      }
    }
  }
}

// A row lies in one column of its panel; the panel is read front to back.
template <class T>
void unpack_rows(const UnpackArgs& args, Slice rows) {
  const int64_t elements = packed_panel_elements<T>(args.k);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t column = args.ids[r] % kPanelWidth;
    const T* panel = static_cast<const T*>(args.packed) + args.ids[r] / kPanelWidth * elements;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    for (int64_t k = 0; k < args.k; ++k) y[k] = panel[panel_offset<T>(k, column, kPanelWidth)];
  }
}

// ---- the product -----------------------------------------------------------------------------

// Whether a tile's rows of a, which are read where they lie, push each other out of L1: x86 has 8
// ways (12 since Ice Lake) of 4 KiB, so more than 8 rows with such a distance share the lines of
// one set.  Copied apart once for all panels, products of 12 rows took 0.80 to 0.88 of the time and
// those of 256 and 1,024 rows 0.89 to 0.95 (2048 to 8192 channels, fp32 and bf16, Zen 4; 6 rows of
// AVX2 gained nothing).
template <class T>
bool rows_collide(int64_t m, int64_t stride) {
#if defined(CPU_BACKEND_TILES)
  // A pair of tiles loads a line of 32 rows each.
  if constexpr (kSame<T, bf16_t>) return m > kTileRows / 2 && stride * sizeof(T) % 4096 == 0;
#endif
  constexpr int64_t kWays = 8, kWayBytes = 4096;
  constexpr bool kInPlace = kSame<T, Left<T>>;
  return kInPlace && kMaxRows > kWays && m > kWays && stride * sizeof(T) % kWayBytes == 0;
}

// Some rows of a, a part of the depth, and the panels they are multiplied with.
template <class T>
struct GemmStep {
  const Left<T>* a;
  int64_t a_stride;
  int64_t rows, depth;
  const T* panel;
  int64_t panel_elements;
  float* c;  // [panels][rows][kPanelWidth]
  bool accumulate;
  bool first;  // of many panels that these rows meet
};

// Rows that have the type already are read where they lie, others are widened into `wide`.
template <class T>
void take_rows(GemmStep<T>& step, const T* a, int64_t a_stride, float* wide) {
  if constexpr (sizeof(T) == sizeof(Left<T>)) {
    step.a = a;
    step.a_stride = a_stride;
  } else {
    step.a = wide;
    step.a_stride = padded_depth(step.depth);
    for (int64_t r = 0; r < step.rows; ++r)
      for_each_vector(step.depth, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
        store_n(wide + r * step.a_stride + i, load_n(a + r * a_stride + i, n), n);
      });
  }
}

// Panels that few rows take side by side, as many as the registers hold: they alone have too few
// independent multiply-adds to hide the latency of one (4 cycles, two per cycle), and each panel is
// one more stream of memory.  Three rows with two panels would need 17 of 16 registers.  Fetching
// the streams ahead, as rows of quantized weights do, lost up to 8 % on Zen 5.
constexpr int64_t panels_at_once(int64_t rows) {
  if (kMaxRows == 12) return rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
  return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

template <int kRows, int kPanels, class T>
CPU_BACKEND_INLINE void multiply_side_by_side(const GemmStep<T>& step) {
  Ahead none{};
  multiply_tile<Fetch::kInBursts, Left<T>, T, kRows, kPanelVecs, kPanels>(
      step.a, step.a_stride, step.panel, kPanelWidth, step.panel_elements, step.depth, step.c,
      kPanelWidth, kRows * kPanelWidth, step.accumulate, none);
}

template <int kRows = kMaxRows / 2, class T>
CPU_BACKEND_INLINE void multiply_few_rows(const GemmStep<T>& step, int64_t panels) {
  if (step.rows < kRows) {
    if constexpr (kRows > 1) multiply_few_rows<kRows - 1>(step, panels);
    return;
  }
  if constexpr (panels_at_once(kRows) == 4) {
    if (panels == 4) return multiply_side_by_side<kRows, 4>(step);
    if (panels == 3) return multiply_side_by_side<kRows, 3>(step);
  }
  if constexpr (panels_at_once(kRows) > 1) multiply_side_by_side<kRows, 2>(step);
}

//
// done(first row, rows) follows where results are ready.
template <class T, class Done>
void multiply_panels(const GemmStep<T>& step, int64_t panels, Done done) {
  if (panels > 1) {
    multiply_few_rows(step, panels);
    return done(0, step.rows);
  }
  // With several tiles only the first would wait for the panel, and longer than it computes: so all
  // of them fetch the next one.  A single tile fetches a page ahead where it computes for as long
  // as the memory takes (8 rows on Zen 5: 72 -> 93 % of the bound); with 16 registers it is best
  // left to the hardware.
  constexpr int64_t kPageAhead = 4096 / sizeof(T);
  const int64_t distance = step.rows > kMaxRows ? step.panel_elements
                           : kMaxRows == 12     ? kPageAhead
                                                : 0;
  Ahead ahead = next_panel(distance > 0 ? step.panel + distance : nullptr, step.rows);
  // The first panel meets rows that nobody has read: the next tile's, where they follow.
  if (step.first && step.rows > kMaxRows && step.a_stride == step.depth)
    ahead = {reinterpret_cast<const char*>(step.a + kMaxRows * step.depth),
             kMaxRows * static_cast<int64_t>(sizeof(Left<T>))};
  multiply_tile_by_tile(step.rows, kPanelWidth, step.a, step.a_stride, step.panel, kPanelWidth,
                        step.depth, step.c, kPanelWidth, step.accumulate, ahead, done);
}

#if defined(CPU_BACKEND_TILES)
// Tiles read whole multiples of their depth: where a row ends before, a copy ends in zeros.
template <>
inline void take_rows(GemmStep<bf16_t>& step, const bf16_t* a, int64_t a_stride, float* scratch) {
  const int64_t padded = round_up(step.depth, kTileDepth);
  step.a = a;
  step.a_stride = a_stride;
  if (padded > step.depth) {
    bf16_t* copy = reinterpret_cast<bf16_t*>(scratch);
    for (int64_t r = 0; r < step.rows; ++r)
      for (int64_t k = 0; k < padded; ++k)
        copy[r * padded + k] = k < step.depth ? a[r * a_stride + k] : bf16_t{};
    step.a = copy;
    step.a_stride = padded;
  }
}

template <class Done>
void multiply_panels(const GemmStep<bf16_t>& step, int64_t panels, Done done) {
  // Few rows read panels from front to back, one after the other, so what comes soon is enough.
  constexpr int64_t kSoon = 16384;
  const int64_t ahead =
      step.rows <= kPairOfTiles && step.panel_elements > kSoon ? kSoon : step.panel_elements;
  for (int64_t p = 0; p < panels; ++p) {
    const bf16_t* panel = step.panel + p * step.panel_elements;
    multiply_in_tiles(step.rows, step.a, step.a_stride, panel, round_up(step.depth, kTileDepth),
                      step.c + p * step.rows * kPanelWidth, step.accumulate, panel + ahead);
  }
  done(0, step.rows);
}
#endif

// Rows of one item of m.
template <class T>
int64_t gemm_item_rows(int64_t m, int64_t k) {
#if defined(CPU_BACKEND_TILES)
  if constexpr (kSame<T, bf16_t>) return tile_item_rows(m);
#endif
  return gemm_rows(m, k, sizeof(Left<T>), sizeof(T));
}

// Panels whose products are stored together.
#if defined(CPU_BACKEND_TILES)
template <class T>
constexpr int64_t kStoredTogether = kSame<T, bf16_t> ? 8 : 1;
#else
template <class T>
constexpr int64_t kStoredTogether = 1;
#endif

// How deep they are taken at a time.
template <class T>
int64_t taken_depth(int64_t rows, int64_t k) {
#if defined(CPU_BACKEND_TILES)
  // Where they lie: a quarter of L2, which is 2 MiB on every CPU with such tiles.
  constexpr int64_t kElements = 1 << 18;
  if (kSame<T, bf16_t> && k % kTileDepth == 0)
    return rows * k <= kElements ? k : kElements / rows / kTileDepth * kTileDepth;
#endif
  return gemm_depth(rows, k, sizeof(Left<T>));
}

// Of fewer panels even the first one is worth more than the rows: two threads with 64 and 256 rows
// and weights from memory were 2 to 7 % slower (576 channels, Zen 4).
constexpr int64_t kManyPanels = 8;

// Rows that gemm_item_rows() allows, by panels.
template <class T>
void gemm_block(const GemmArgs& args, Slice rows, Slice panels, float* scratch) {
  const int64_t elements = packed_panel_elements<T>(args.k);
  const T* a = static_cast<const T*>(args.a) + rows.begin * args.a_stride;
  float* products = scratch + kActivationFloats;
  GemmStep<T> step{};
  step.rows = rows.end - rows.begin;
  step.panel_elements = elements;

  // As deep as the activations fit.  Then panels go in groups: as many as their products can wait,
  // or, where nothing waits, those that are taken at once.
  const int64_t deep = taken_depth<T>(step.rows, args.k);
  const int64_t at_once = panels_at_once(step.rows);
  const int64_t pair = args.epilogue.gated ? 2 : 1;
  const int64_t waiting = kProductFloats / (step.rows * kPanelWidth) / pair * pair;
  const int64_t stored = kStoredTogether<T> > at_once ? kStoredTogether<T> : at_once;
  const int64_t group = deep < args.k || waiting < stored ? waiting : stored > pair ? stored : pair;
  for (int64_t p = panels.begin; p < panels.end; p += group) {
    const int64_t end = p + group < panels.end ? p + group : panels.end;
    for (int64_t k = 0; k < args.k; k += deep) {
      step.depth = args.k - k < deep ? args.k - k : deep;
      step.accumulate = k > 0;
      if (deep < args.k || p == panels.begin) take_rows(step, a + k, args.a_stride, scratch);
      for (int64_t q = p; q < end; q += at_once) {
        step.panel = static_cast<const T*>(args.packed) + q * elements + k * kPanelWidth;
        step.c = products + (q - p) * step.rows * kPanelWidth;
        step.first = q == panels.begin && panels.end - panels.begin >= kManyPanels;
        const int64_t now = end - q < at_once ? end - q : at_once;
        const bool ready = k + deep >= args.k && q + now == end;
        const auto fetch = [&](int64_t row) CPU_BACKEND_LAMBDA {
          if (!ready || end - p > pair) return;
          const int64_t last = row + kMaxRows < step.rows ? row + kMaxRows : step.rows;
          fetch_results<T>(args.epilogue, {rows.begin + row, rows.begin + last},
                           panel_columns(args.n, args.parts, p).begin);
        };
        fetch(0);
        multiply_panels(step, now, [&](int64_t row, int64_t count) CPU_BACKEND_LAMBDA {
          if (!ready) return;
          store_panels<T>(args.epilogue, args.n, args.parts, rows.begin + row, count, {p, end},
                          products + row * kPanelWidth, step.rows);
          fetch(row + count);
        });
      }
    }
  }
}

// Rows [rows.begin, rows.end) x panels [panels.begin, panels.end) of c; with a gated epilogue
// panels come in whole pairs.
template <class T>
void gemm(const GemmArgs& args, Slice rows, Slice panels, float* scratch) {
  const int64_t step = gemm_item_rows<T>(rows.end - rows.begin, args.k);
  for (int64_t r = rows.begin; r < rows.end; r += step)
    gemm_block<T>(args, {r, r + step < rows.end ? r + step : rows.end}, panels, scratch);
}

}  // namespace CPU_BACKEND_NAMESPACE

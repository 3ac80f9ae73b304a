// Weights of the activations' own type: fp32, bf16 or fp16.
//
// Packed    panels of kPanelWidth columns of n (kernels/tiles/panel.h), one after the other;
// columns past
//           n are zeros.
// Product   a panel streams past the rows and is widened in registers.  Widening a block of it into
//           L1 first (Goto and van de Geijn 2008) was tried and lost: the widening hides behind the
//           multiply-adds (91 to 94 % of the peak against 94 % of fp32, Zen 3, 6 x 2 tile), while
//           short blocks interrupt the hardware's prefetching.
#pragma once

#include "core/view.h"
#include "kernels/gemm_rows.h"

namespace CPU_BACKEND_NAMESPACE {

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

template <class T>
class PlainWeight : public MeetsFloats<T> {
 public:
  explicit PlainWeight(const GemmArgs& args)
      : MeetsFloats<T>(args.k, false),
        packed_(static_cast<const T*>(args.packed)),
        elements_(packed_panel_elements<T>(args.k)) {}

  // Where channels that are taken together end, about `deep` after k.
  int64_t part_end(int64_t k, int64_t deep) const {
    return this->k_ - k < deep ? this->k_ : k + deep;
  }

  // c[panels][rows][kPanelWidth] (+)= rows * panels; at most panels_at_once() of them.  first: of
  // many panels that these rows meet.  done(first row, rows) follows where results are ready.
  template <class Done>
  void multiply(const TakenRows<T>& rows, Slice panels, float* c, bool first, float*,
                Done done) const {
    const T* const panel = packed_ + panels.begin * elements_ + rows.k * kPanelWidth;
    const bool accumulate = rows.k > 0;
    const int64_t count = panels.end - panels.begin;
#if defined(CPU_BACKEND_TILES)
    if constexpr (kInTiles<T>) {
      // Few rows read panels from front to back, one after the other, so what comes soon is enough.
      constexpr int64_t kSoon = 16384;
      const int64_t ahead = rows.count <= kPairOfTiles && elements_ > kSoon ? kSoon : elements_;
      for (int64_t p = 0; p < count; ++p)
        multiply_in_tiles(rows.count, rows.a, rows.a_stride, panel + p * elements_,
                          round_up(rows.depth, kTileDepth), c + p * rows.count * kPanelWidth,
                          accumulate, panel + p * elements_ + ahead);
      return done(0, rows.count);
    }
#endif
    if (count > 1) {
      with_few_rows<4>(rows.count, count, [&](auto few, auto together) CPU_BACKEND_LAMBDA {
        constexpr int kRows = decltype(few)::value, kPanels = decltype(together)::value;
        Ahead none{};
        multiply_tile<Fetch::kInBursts, Left<T>, T, kRows, kPanelVecs, kPanels>(
            rows.a, rows.a_stride, panel, kPanelWidth, elements_, rows.depth, c, kPanelWidth,
            kRows * kPanelWidth, accumulate, none, Unscaled{});
      });
      return done(0, rows.count);
    }
    // With several tiles only the first would wait for the panel, and longer than it computes: so
    // all of them fetch the next one.  A single tile fetches a page ahead where it computes for as
    // long as the memory takes (8 rows on Zen 5: 72 -> 93 % of the bound); with 16 registers it is
    // best left to the hardware.
    constexpr int64_t kPageAhead = 4096 / sizeof(T);
    const int64_t distance = rows.count > kMaxRows ? elements_ : kMaxRows == 12 ? kPageAhead : 0;
    Ahead ahead = next_panel(distance > 0 ? panel + distance : nullptr, rows.count);
    // The first panel meets rows that nobody has read: the next tile's, where they follow.
    if (first && rows.count > kMaxRows && rows.a_stride == rows.depth)
      ahead = {reinterpret_cast<const char*>(rows.a + kMaxRows * rows.depth),
               kMaxRows * static_cast<int64_t>(sizeof(Left<T>))};
    multiply_tile_by_tile(rows.count, kPanelWidth, rows.a, rows.a_stride, panel, kPanelWidth,
                          rows.depth, c, kPanelWidth, accumulate, ahead, done);
  }

 private:
  const T* packed_;
  int64_t elements_;  // of a panel
};

}  // namespace CPU_BACKEND_NAMESPACE

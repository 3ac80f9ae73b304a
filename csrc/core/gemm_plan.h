// How one linear layer is cut into items, as plain data: tests drive it with any number of
// pretended threads.
#pragma once

#include "core/slice.h"

namespace cpu_backend {

// Multiply-adds that one fp32 chain takes: the sum over k is cut at its multiples only
// (kernels/tiles/panel.h).
constexpr int64_t kChainLength = 128;

// Activations of one item as they meet the panels, most often widened to fp32: 24 rows of 2048 in
// 208 KiB, which with the panels that stream past them stay in 512 KiB of L2.
constexpr int64_t kActivationFloats = 53248;
constexpr int64_t activation_elements(int64_t bytes) { return kActivationFloats * 4 / bytes; }

// Numbers from one row that was copied to the next: a cache line of padding, whatever their type,
// keeps rows of 2^n out of each other's cache sets.
constexpr int64_t kRowPadding = 32;
constexpr int64_t padded_depth(int64_t depth) { return round_up(depth, kRowPadding) + kRowPadding; }

// How deep `rows` rows can be taken at a time, in whole chains; `bytes` of one activation.
static inline int64_t gemm_depth(int64_t rows, int64_t k, int64_t bytes) {
  const int64_t most = activation_elements(bytes);
  if (rows * padded_depth(k) <= most) return k;
  return (most / rows - kRowPadding) / kChainLength * kChainLength;
}

struct GemmShape {
  int64_t m, n, k;
  int64_t panels;  // of the packed weight
  int together;    // panels that one item must hold together: 2 for a gated epilogue
};

// Items are rows x panels; neighbouring items share panels, so that these come from memory once.
struct GemmPlan {
  int64_t m, units, together;
  int64_t row_step, row_items, panel_items;

  int64_t items() const { return row_items * panel_items; }
  Slice rows(int64_t item) const {
    const int64_t begin = item % row_items * row_step;
    return {begin, begin + row_step < m ? begin + row_step : m};
  }
  Slice panels(int64_t item) const {
    const Slice part = split(units, panel_items, item / row_items);
    return {part.begin * together, part.end * together};
  }
};

// Rows of one item of m: as many as fit the cache, but at least `least` (24 are four register tiles
// of 6 rows, two of 12) and at most 96, because each item reads its panels again.  Items are of
// equal size: with 24 and 8 instead of 16 and 16, products of 32 rows took 5 to 25 % longer (Zen
// 5).
constexpr int64_t kLeastItemRows = 24;
constexpr int64_t kMostItemRows = 96;
static inline int64_t item_rows(int64_t m, int64_t fitting, int64_t least = kLeastItemRows) {
  constexpr int64_t kTileRows = 12;  // a multiple of every target's tile
  const int64_t tiles = fitting / kTileRows * kTileRows;
  const int64_t most = tiles < least ? least : tiles > kMostItemRows ? kMostItemRows : tiles;
  const int64_t equal = ceil_div(m, ceil_div(m, most));
  return round_up(equal, equal < least ? 4 : kTileRows);
}

// The same for activations of `bytes` each, which are taken in parts where the least do not fit.
// fp32 weights need twice as many rows for the same work per byte: with 24, products of 256 and
// 1024 rows took 6 to 17 % longer (2048 and 8192 channels, Zen 5).
static inline int64_t gemm_rows(int64_t m, int64_t k, int64_t bytes, int64_t weight_bytes) {
  return item_rows(m, activation_elements(bytes) / padded_depth(k), 12 * weight_bytes);
}

// The same for rows of bf16 that meet their panel in pairs of matrix tiles of 16, equal but for the
// last: a panel comes from memory once for all of them.  Twice as many were no faster where that
// memory, not the tiles, is the limit.
constexpr int64_t kMostTileItemRows = 128;
static inline int64_t tile_item_rows(int64_t m) {
  constexpr int64_t kPairOfTiles = 32;
  return round_up(ceil_div(m, ceil_div(m, kMostTileItemRows)), kPairOfTiles);
}

// About `items` parts of `units` columns of panels, at most `most`, so that rounds of items times
// the largest part are least: 18 units in 6 parts of 3, not in 8 of 2 or 3.  One row of quantized
// weights, which takes the panels of a part side by side, gains most (int8 decode of the demo model
// 7 %, two threads on Zen 5; bf16 and fp32 the same).
static inline int64_t fair_parts(int64_t items, int64_t most, int64_t units, int64_t row_items,
                                 int64_t threads) {
  const auto longest = [&](int64_t parts) {
    return ceil_div(parts * row_items, threads) * ceil_div(units, parts);
  };
  constexpr int64_t kClearly = 64;  // smaller gains than a part in so many are none
  const int64_t limit = items + ceil_div(items, 2) < most ? items + ceil_div(items, 2) : most;
  int64_t best = items;
  const auto consider = [&](int64_t parts) {
    if (longest(parts) * kClearly < longest(best) * (kClearly - 1)) best = parts;
  };
  for (int64_t parts = items + 1; parts <= limit; ++parts) consider(parts);
  for (int64_t parts = items - 1; parts >= items - items / 4; --parts) consider(parts);
  return best;
}

// About four items per thread, so that one that is held up does not keep the others waiting, but
// none of less than some 5 microseconds, and an equal share for each thread.  With eight, each of
// which widens its rows anew, products of 8 to 64 rows took up to a tenth longer.  Where items
// repeat for many rows, their panels are few enough to stay in a shared cache until all rows have
// used them.
//
// row_step: rows of an item, at most; gemm_rows() for activations that are widened.
static inline GemmPlan plan_gemm(const GemmShape& shape, int64_t row_step, int64_t threads) {
  constexpr int64_t kItemsPerThread = 4;
  constexpr int64_t kItemWork = 1 << 18;  // multiply-adds
  constexpr int64_t kMemoryRows = 8;      // fewer rows take as long: they wait for the weights
  constexpr int64_t kGroupColumns = 256;  // so many use a row of activations once it is widened
  constexpr int64_t kGroupWeights = 1 << 19;
  GemmPlan plan{};
  plan.m = shape.m;
  plan.together = shape.together;
  plan.units = shape.panels / shape.together;
  plan.row_step = row_step;
  plan.row_items = ceil_div(shape.m, plan.row_step);
  const int64_t rows = shape.m < kMemoryRows ? kMemoryRows : shape.m;
  const int64_t worth = rows * shape.n * shape.k / kItemWork / plan.row_items;
  int64_t items = ceil_div(kItemsPerThread * threads, plan.row_items);
  if (plan.row_items > 1) {
    // Many rows of an item go on for long once they are in L2.
    const int64_t least = row_step > kMostItemRows ? 8 * row_step : kGroupColumns;
    const int64_t columns = kGroupWeights / shape.k > least ? kGroupWeights / shape.k : least;
    if (items < shape.n / columns) items = shape.n / columns;
  }
  const int64_t most = worth < 1 ? 1 : worth < plan.units ? worth : plan.units;
  if (items > most) items = most;
  plan.panel_items = fair_parts(items, most, plan.units, plan.row_items, threads);
  return plan;
}

}  // namespace cpu_backend

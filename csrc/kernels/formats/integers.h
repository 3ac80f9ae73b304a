// Weights of integer codes: integer products, scaled into fp32 once per segment.
//
//   c[m][n] = sum over the segments s of every group g of
//               a_scale[m][s] * scale[g][n] * (dot(a[m], q[n]) - zero[g][n] * sum(a[m]))
//
// Packed    kernels/formats/integer_pack.h; rows: kernels/quant_rows.h.
// Numerics  dot, zero * sum and their difference are int32, exact.  With one scale per row and one
//           group that is the whole product, so W8A8 is its integer definition.  Segments are added
//           in fp32 in the order of k; bias is added in fp32; one rounding, on store.  kOffset:
//           a_scale * scale * dot + a_scale * sum * zero, the last product in fp32.
//           kLevels, kTable: the product of the 8-bit codes that kernels/formats/integer_expand.h
//           makes; few rows get the same whole numbers in another order
//           (kernels/tiles/integer_registers.h).
// Tiles     kernels/tiles/integer_registers.h; where the target has matrix tiles, many rows take
//           kernels/tiles/integer_matrix.h, with the same results.
#pragma once

#include "core/gemm_plan.h"
#include "core/quant.h"
#include "kernels/tiles/integer_matrix.h"
#include "kernels/tiles/integer_registers.h"

namespace CPU_BACKEND_NAMESPACE {

// All of a tile's rows `a` by some panels into block[panels][rows][kPanelWidth].
template <class Tile>
CPU_BACKEND_NOINLINE void integer_tile(const QuantLayout& layout, TileRows a, int64_t rows,
                                       TileCodes packed, float* block, float* scratch = nullptr) {
  const int64_t segment = layout.segment_steps();
  packed.pieces = a.pieces;
  Tile tile(layout, rows, block, scratch);
  for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
    const int64_t channels = layout.k - begin < layout.group ? layout.k - begin : layout.group;
    const char* group = packed.at;
    packed.at += group_head_bytes(layout);
    TileCodes codes = packed;
    const bool expand = Tile::kMayExpand && packed.expanded;
    if (expand) {
      packed.at = packed.expansion->group<8>(packed.at, channels, packed.expanded);
      codes.at = packed.expanded;
      codes.alone = false;
    }
    for (int64_t left = ceil_div(channels, QuantLayout::kStep); left > 0; left -= segment) {
      const int64_t steps = left < segment ? left : segment;
      tile.add_segment(layout, group, a, codes, steps);
      a.end_segment(rows, tile.code_bytes(steps));
    }
    if (expand) {
      packed.ahead = codes.ahead;
    } else {
      packed = codes;
    }
  }
  tile.end(block);
}

// One row takes up to four panels side by side: as many streams of memory, which a core reads
// faster than one (int8 by a third).  Sums of quads in 16 bits would no longer fit the registers,
// and codes expanded for four panels in turn were 10 to 40 % slower than for one.
constexpr int64_t kSideBySide = 4;

CPU_BACKEND_INLINE bool are_side_by_side(const QuantLayout& layout) {
  return kQuads8 || !uses_quads(layout);
}

// Any number of rows up to kQuantRows, as a compile-time constant.
template <int kBits, bool kQuads, int kRows = kQuantRows>
CPU_BACKEND_INLINE void integer_rows(int64_t rows, int64_t panels, const QuantLayout& layout,
                                     const TileRows& a, const TileCodes& codes, float* block) {
  if constexpr (kRows > 1) {
    if (rows == kRows) {
      integer_tile<RegisterTile<kBits, kQuads, kRows, 1>>(layout, a, kRows, codes, block);
    } else {
      integer_rows<kBits, kQuads, kRows - 1>(rows, panels, layout, a, codes, block);
    }
  } else {
    if constexpr (kQuads8 || !kQuads) {
      if (panels == 4)
        return integer_tile<RegisterTile<kBits, kQuads, 1, 4>>(layout, a, 1, codes, block);
      if (panels == 3)
        return integer_tile<RegisterTile<kBits, kQuads, 1, 3>>(layout, a, 1, codes, block);
      if (panels == 2)
        return integer_tile<RegisterTile<kBits, kQuads, 1, 2>>(layout, a, 1, codes, block);
    }
    integer_tile<RegisterTile<kBits, kQuads, 1, 1>>(layout, a, 1, codes, block);
  }
}

// Codes that more rows do not meet.
template <int kBits, bool kQuads>
CPU_BACKEND_INLINE void few_integer_rows(int64_t rows, int64_t panels, const QuantLayout& layout,
                                         const TileRows& a, const TileCodes& codes, float* block) {
  integer_rows<kBits, kQuads, int{QuantLayout::kFewRows}>(rows, panels, layout, a, codes, block);
}

// A tile of rows by `panels` panels from `codes` on, into block[panels][rows][kPanelWidth].
static inline void multiply_codes(const QuantLayout& layout, const TileRows& a, int64_t rows,
                                  int64_t panels, const TileCodes& codes, float* block) {
  if (layout.bits == 2) {
    uses_quads(layout) ? few_integer_rows<2, true>(rows, panels, layout, a, codes, block)
                       : few_integer_rows<2, false>(rows, panels, layout, a, codes, block);
  } else if (layout.bits == 3) {
    uses_quads(layout) ? few_integer_rows<3, true>(rows, panels, layout, a, codes, block)
                       : few_integer_rows<3, false>(rows, panels, layout, a, codes, block);
  } else if (layout.bits == 4) {
    uses_quads(layout) ? integer_rows<4, true>(rows, panels, layout, a, codes, block)
                       : integer_rows<4, false>(rows, panels, layout, a, codes, block);
  } else if (kQuads8 && uses_quads(layout)) {
    integer_rows<8, kQuads8>(rows, panels, layout, a, codes, block);
  } else {
    integer_rows<8, false>(rows, panels, layout, a, codes, block);
  }
}

class IntegerWeight {
 public:
  // Whole tiles of at most so many rows, and results of panels that are stored together.
  static constexpr int64_t kMostTogether = kHasTiles ? kMatrixRows : kMostItemRows;
  static constexpr int64_t kStoredFloats = (kHasTiles ? 8 : 2) * kMostTogether * kPanelWidth;
  static_assert(kMostRows <= kMostTogether, "tiles");

  // What a tile keeps beside its results, and a panel of codes that are expanded.
  static int64_t scratch_floats(const QuantLayout& layout) {
    const bool expands = layout.expands() || (kHasTiles && layout.bits < 8);
    return kMatrixFloats + (expands ? (expanded_panel_bytes(layout) + kReadPast) / 4 : 0);
  }

  explicit IntegerWeight(const GemmArgs& args)
      : args_(args),
        packed_(*args.codes),
        met_(args.codes->multiplied(args.integers.m)),
        matrix_(in_matrix(args.integers)),
        expands_((matrix_ ? 8 : met_.bits) != packed_.bits),
        bytes_(panel_bytes(packed_)),
        expansion_(packed_, met_),
        table_(packed_.table) {}

  // Rows that are integers already, in tiles.
  struct Rows {
    int64_t begin, count;
    int64_t k, depth;  // all of it
  };
  Rows rows(const GemmArgs&, Slice rows) const { return {rows.begin, rows.end - rows.begin, 0, 0}; }
  void take(Rows&, float*) const {}

  int64_t item_rows(int64_t) const { return kMostTogether / tile_rows() * tile_rows(); }
  int64_t tile_rows() const { return args_.integers.tile_rows; }
  int64_t depth(int64_t) const { return packed_.k; }
  int64_t part_end(int64_t, int64_t) const { return packed_.k; }
  int64_t at_once(int64_t count) const {
    return count == 1 && !matrix_ && !expands_ && are_side_by_side(met_) ? kSideBySide : 1;
  }
  // With a gate as many as results can wait for: storing after every pair interrupted the streams
  // of memory, and products of 2 rows took 5 to 8 % longer (int8, Zen 4).
  int64_t stored_together(int64_t count, bool gated) const {
    return gated || matrix_ ? kStoredFloats / (count * kPanelWidth) : at_once(count);
  }

  template <class Done>
  void multiply(const Rows& rows, Slice panels, float* c, bool, float* scratch, Done done) const {
    const int64_t tiles = ceil_div(rows.count, tile_rows()), steps = packed_.steps();
    const char* const panel = static_cast<const char*>(args_.packed) + panels.begin * bytes_;
    char* const expanded = reinterpret_cast<char*>(scratch + kMatrixFloats);
    TileCodes codes{};
    codes.at = panel;
    codes.stride = bytes_;
    codes.expansion = &expansion_;
    codes.table = table_;
    // Into 4 bits a panel at a time: an if per group costs the tiles of such codes a tenth.
    const bool bytes = matrix_ || met_.bits == 8;
    const bool by_group = bytes && tiles == 1;
    codes.alone = tiles == 1 && (!expands_ || by_group);
    if (expands_ && by_group) {
      codes.expanded = expanded;
    } else if (expands_) {
      bytes ? expansion_.panel<8>(panel, expanded) : expansion_.panel<4>(panel, expanded);
      codes.at = expanded;
    }
    // With several tiles only the first would wait for the panel, and longer than it computes: so
    // all of them fetch a part of the next one, which costs a single tile a tenth of its speed.  A
    // matrix tile computes for long enough.
    const bool fetch = matrix_ || tiles > 1;
    codes.ahead_step = fetch ? ceil_div(bytes_, tiles * steps) : 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t row = t * tile_rows();
      const int64_t size = rows.count - row < tile_rows() ? rows.count - row : tile_rows();
      float* const block = c + row * kPanelWidth;
      codes.ahead = panel + (fetch ? bytes_ + t * steps * codes.ahead_step : 0);
      multiply_tile_of_rows(rows.begin + row, size, panels.end - panels.begin, codes, block,
                            scratch);
      if (args_.row_shift) add_shifts(rows.begin + row, size, panels, block, rows.count);
      done(row, size);
    }
  }

 private:
  CPU_BACKEND_NOINLINE void multiply_tile_of_rows(int64_t row, int64_t size, int64_t panels,
                                                  const TileCodes& codes, float* block,
                                                  [[maybe_unused]] float* scratch) const {
    const TileRows a(met_, args_.integers.data, row, size);
#if defined(CPU_BACKEND_TILES)
    if (matrix_)
      return uses_quads(met_)
                 ? integer_tile<MatrixTile<true>>(met_, a, size, codes, block, scratch)
                 : integer_tile<MatrixTile<false>>(met_, a, size, codes, block, scratch);
#endif
    multiply_codes(met_, a, size, panels, codes, block);
  }

  // Adds the caller's correction to rows of block[panels][block_rows][kPanelWidth].
  void add_shifts(int64_t row, int64_t rows, Slice panels, float* block, int64_t block_rows) const {
    for (int64_t p = panels.begin; p < panels.end; ++p, block += block_rows * kPanelWidth) {
      const Slice columns = panel_columns(packed_.n, packed_.parts, p);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = columns.begin; c < columns.end; ++c)
          block[r * kPanelWidth + c - columns.begin] +=
              args_.row_shift[row + r] * args_.column_shift[c];
    }
  }

  const GemmArgs& args_;
  const QuantLayout& packed_;
  QuantLayout met_;  // what the codes are where they meet the rows
  bool matrix_, expands_;
  int64_t bytes_;  // of a panel
  Expansion expansion_;
  ByteTable table_;
};

}  // namespace CPU_BACKEND_NAMESPACE

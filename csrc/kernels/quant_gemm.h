// Linear layers on quantized weights: integer products, scaled into fp32 once per segment.
//
//   c[m][n] = sum over the segments s of every group g of
//               a_scale[m][s] * scale[g][n] * (dot(a[m], q[n]) - zero[g][n] * sum(a[m]))
//
// Packed    kernels/quant_pack.h; a: kernels/quant_rows.h.
// Numerics  dot, zero * sum and their difference are int32, exact.  With one scale per row and one
//           group that is the whole product, so W8A8 is its integer definition.  Segments are added
//           in fp32 in the order of k; bias is added in fp32; one rounding, on store.  kOffset:
//           a_scale * scale * dot + a_scale * sum * zero, the last product in fp32.
//           kLevels, kTable: the product of the 8-bit codes that kernels/quant_expand.h makes; few
//           rows get the same whole numbers in another order (kernels/quant_tile.h).
// Tiles     kernels/quant_tile.h in registers; where the target has matrix tiles, many rows take
//           kernels/quant_matrix.h, with the same results.
// Threads   none: rows x panels given by the caller; scratch of quant_scratch_floats() per thread.
#pragma once

#include "core/gemm_plan.h"
#include "core/quant.h"
#include "kernels/epilogue.h"
#include "kernels/quant_matrix.h"
#include "kernels/quant_tile.h"

namespace CPU_BACKEND_NAMESPACE {

// Rows [row, row + rows) of some panels into block[panels][rows][kPanelWidth].
template <class Tile>
CPU_BACKEND_NOINLINE void quant_tile(const QuantGemmArgs& args, int64_t row, int64_t rows,
                                     TileCodes packed, float* block, float* scratch = nullptr) {
  const QuantLayout& layout = args.layout;
  const int64_t segment = layout.segment_steps();
  TileRows a(args, row, Tile::rows(rows));
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
      a.end_segment(Tile::rows(rows), tile.code_bytes(steps));
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
CPU_BACKEND_INLINE void quant_rows(int64_t rows, int64_t panels, const QuantGemmArgs& args,
                                   int64_t row, const TileCodes& codes, float* block) {
  if constexpr (kRows > 1) {
    if (rows == kRows) {
      quant_tile<RegisterTile<kBits, kQuads, kRows, 1>>(args, row, kRows, codes, block);
    } else {
      quant_rows<kBits, kQuads, kRows - 1>(rows, panels, args, row, codes, block);
    }
  } else {
    if constexpr (kQuads8 || !kQuads) {
      if (panels == 4)
        return quant_tile<RegisterTile<kBits, kQuads, 1, 4>>(args, row, 1, codes, block);
      if (panels == 3)
        return quant_tile<RegisterTile<kBits, kQuads, 1, 3>>(args, row, 1, codes, block);
      if (panels == 2)
        return quant_tile<RegisterTile<kBits, kQuads, 1, 2>>(args, row, 1, codes, block);
    }
    quant_tile<RegisterTile<kBits, kQuads, 1, 1>>(args, row, 1, codes, block);
  }
}

// Codes that more rows do not meet.
template <int kBits, bool kQuads>
CPU_BACKEND_INLINE void few_quant_rows(int64_t rows, int64_t panels, const QuantGemmArgs& args,
                                       int64_t row, const TileCodes& codes, float* block) {
  quant_rows<kBits, kQuads, int{QuantLayout::kFewRows}>(rows, panels, args, row, codes, block);
}

// Results of a group of panels, what a tile keeps beside its own, and a panel of codes that are
// expanded.
constexpr int64_t kMostTogether = kHasTiles ? kMatrixRows : kMostItemRows;
constexpr int64_t kResultFloats = (kHasTiles ? 8 : 2) * kMostTogether * kPanelWidth;
static_assert(kResultFloats >= kSideBySide * kPanelWidth && kMostRows <= kMostTogether, "results");

static inline int64_t quant_scratch_floats(const QuantLayout& layout) {
  const bool expands = layout.expands() || (kHasTiles && layout.bits < 8);
  return kResultFloats + kMatrixFloats +
         (expands ? (expanded_panel_bytes(layout) + kReadPast) / 4 : 0);
}

// Rows [row, row + rows) of `panels` panels from `codes` on, into block[panels][rows][kPanelWidth].
static inline void quant_block(const QuantGemmArgs& args, int64_t row, int64_t rows, int64_t panels,
                               const TileCodes& codes, float* block,
                               [[maybe_unused]] float* scratch) {
#if defined(CPU_BACKEND_TILES)
  if (in_matrix(args.rows))
    return uses_quads(args.layout)
               ? quant_tile<MatrixTile<true>>(args, row, rows, codes, block, scratch)
               : quant_tile<MatrixTile<false>>(args, row, rows, codes, block, scratch);
#endif
  if (args.layout.bits == 2) {
    uses_quads(args.layout) ? few_quant_rows<2, true>(rows, panels, args, row, codes, block)
                            : few_quant_rows<2, false>(rows, panels, args, row, codes, block);
  } else if (args.layout.bits == 3) {
    uses_quads(args.layout) ? few_quant_rows<3, true>(rows, panels, args, row, codes, block)
                            : few_quant_rows<3, false>(rows, panels, args, row, codes, block);
  } else if (args.layout.bits == 4) {
    uses_quads(args.layout) ? quant_rows<4, true>(rows, panels, args, row, codes, block)
                            : quant_rows<4, false>(rows, panels, args, row, codes, block);
  } else if (kQuads8 && uses_quads(args.layout)) {
    quant_rows<8, kQuads8>(rows, panels, args, row, codes, block);
  } else {
    quant_rows<8, false>(rows, panels, args, row, codes, block);
  }
}

// Adds the caller's correction to rows of block[panels][block_rows][kPanelWidth].
static inline void add_shifts(const QuantGemmArgs& args, int64_t row, int64_t rows, Slice panels,
                              float* block, int64_t block_rows) {
  for (int64_t p = panels.begin; p < panels.end; ++p, block += block_rows * kPanelWidth) {
    const Slice columns = panel_columns(args.layout.n, args.layout.parts, p);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = columns.begin; c < columns.end; ++c)
        block[r * kPanelWidth + c - columns.begin] +=
            args.row_shift[row + r] * args.column_shift[c];
  }
}

// At most kMostTogether rows, whole tiles.
template <class T>
void quant_gemm_block(const QuantGemmArgs& args, Slice rows, Slice panels, float* scratch) {
  QuantGemmArgs multiplied = args;
  multiplied.layout = args.layout.multiplied(args.rows.m);
  const bool matrix = in_matrix(args.rows);
  const int code_bits = matrix ? 8 : multiplied.layout.bits;
  const bool expands = code_bits != args.layout.bits;
  const Expansion expansion(args.layout, multiplied.layout);
  float* const beside = scratch + kResultFloats;
  char* const expanded = reinterpret_cast<char*>(beside + kMatrixFloats);
  const int64_t count = rows.end - rows.begin;
  const int64_t tile_rows = args.rows.tile_rows;
  const int64_t tiles = ceil_div(count, tile_rows);
  const int64_t bytes = panel_bytes(args.layout);
  const int64_t steps = args.layout.steps();
  const bool few = count == 1 && !matrix;
  const int64_t at_once = few && !expands && are_side_by_side(multiplied.layout) ? kSideBySide : 1;
  TileCodes codes{};
  codes.stride = bytes;
  // Into 4 bits a panel at a time: an if per group costs the tiles of such codes a tenth.
  const bool by_group = code_bits == 8 && tiles == 1;
  codes.alone = tiles == 1 && (!expands || by_group);
  codes.expansion = &expansion;
  codes.expanded = expands && by_group ? expanded : nullptr;
  codes.table = ByteTable(args.layout.table);
  // With several tiles only the first would wait for the panel, and longer than it computes: so all
  // of them fetch a part of the next one, which costs a single tile a tenth of its speed.  A matrix
  // tile computes for long enough.
  const bool fetch = matrix || tiles > 1;
  codes.ahead_step = fetch ? ceil_div(bytes, tiles * steps) : 0;
  // Panels go in equal groups: those that are taken at once, or before a gate as many as results
  // can wait for.  After every pair it interrupted the streams of memory: products of 2 rows took 5
  // to 8 % longer (int8, Zen 4).
  const int64_t pair = args.epilogue.gated ? 2 : 1;
  const int64_t most =
      args.epilogue.gated || matrix ? kResultFloats / (pair * count * kPanelWidth) : at_once;
  for (int64_t p = panels.begin, end = p; p < panels.end; p = end) {
    const int64_t left = (panels.end - p) / pair;
    end = p + ceil_div(left, ceil_div(left, most)) * pair;
    for (int64_t q = p; q < end; q += at_once) {
      const char* panel = static_cast<const char*>(args.packed) + q * bytes;
      codes.at = panel;
      if (expands && !by_group) {
        code_bits == 8 ? expansion.panel<8>(panel, expanded) : expansion.panel<4>(panel, expanded);
        codes.at = expanded;
      }
      float* block = scratch + (q - p) * count * kPanelWidth;
      const bool last = q + at_once >= end;
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t done = t * tile_rows;
        const int64_t size = count - done < tile_rows ? count - done : tile_rows;
        const int64_t row = rows.begin + done;
        if (last && end - p == pair)
          fetch_results<T>(args.epilogue, {row, row + size},
                           panel_columns(args.layout.n, args.layout.parts, p).begin);
        codes.ahead = panel + (fetch ? bytes + t * steps * codes.ahead_step : 0);
        quant_block(multiplied, row, size, end - q < at_once ? end - q : at_once, codes,
                    block + done * kPanelWidth, beside);
        if (!last) continue;
        float* const results = scratch + done * kPanelWidth;
        if (args.row_shift) add_shifts(args, row, size, {p, end}, results, count);
        store_panels<T>(args.epilogue, args.layout.n, args.layout.parts, row, size, {p, end},
                        results, count);
      }
    }
  }
}

// Rows [rows.begin, rows.end), whole tiles, x panels [panels.begin, panels.end) of c, whose type is
// T or fp32; with a gated epilogue panels come in whole pairs.
template <class T>
void quant_gemm(const QuantGemmArgs& args, Slice rows, Slice panels, float* scratch) {
  const int64_t step = kMostTogether / args.rows.tile_rows * args.rows.tile_rows;
  for (int64_t r = rows.begin; r < rows.end; r += step)
    quant_gemm_block<T>(args, {r, r + step < rows.end ? r + step : rows.end}, panels, scratch);
}

}  // namespace CPU_BACKEND_NAMESPACE

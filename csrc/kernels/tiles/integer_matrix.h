// The matrix tile of quantized products: many rows of one panel by tiles of bytes (isa/tiles.h),
// driven as kernels/tiles/integer_registers.h is, with the same sums and so the same results.
//
// Panel     a word of 8-bit codes of each column is what a tile has of the panel; narrower codes
// are
//           expanded before (kernels/formats/integer_expand.h).
// Rows      kernels/quant_rows.h, Matrix: signed quads, or the upper and lower bytes of pairs, each
//           by themselves: code * activation = 256 * (code * upper) + code * lower.
// Order     as many channels of the panel as stay in L1 meet all rows; the sums of a longer segment
//           wait in memory meanwhile.  A segment is scaled and added to the results as soon as its
//           sums are there, while the tiles multiply the next rows.
#pragma once

#include "kernels/tiles/integer_registers.h"
#include "kernels/tiles/panel_matrix.h"

namespace CPU_BACKEND_NAMESPACE {

// Sums of both planes.
constexpr int64_t kMatrixFloats = kHasTiles ? 2 * kMatrixRows * kPanelWidth : 0;

#if defined(CPU_BACKEND_TILES)

static_assert(kMatrixSteps * QuantLayout::kStep == 4 * kTileWords, "quads");

template <bool kQuads>
class MatrixTile {
 public:
  static constexpr bool kMayExpand = true;

  MatrixTile(const QuantLayout& layout, int64_t rows, float* block, float* scratch)
      : rows_(rows),
        lefts_(ceil_div(rows, kTileRows)),
        left_rows_(ceil_div(rows, lefts_)),
        part_(matrix_steps(layout)),
        tiles_(left_rows_, left_rows_, kColumnsOfTile, kStepQuads * part_),
        results_(block),
        sums_(reinterpret_cast<char*>(scratch)) {
    for (int64_t i = 0; i < rows * kPanelWidth; i += kLanes) store(block + i, Vec{});
  }

  int64_t code_bytes(int64_t steps) const {
    return round_up(steps, part_) * rows_ * kPlanes * kQuadsStep;
  }
  void add_segment(const QuantLayout& layout, const char* group, const TileRows& a,
                   TileCodes& codes, int64_t steps) {
    constexpr int64_t kPartsInL1 = 8;  // 16 KiB of codes where vectors have 64 bytes
    TileOperands from{};
    Ahead ahead{codes.ahead, ceil_div(codes.ahead_step * part_, ceil_div(lefts_, kRowTiles))};
    from.left_row = part_ * kQuadsStep;
    from.left_step = kPlanes * rows_ * from.left_row;
    from.panel_row = kWordRowBytes;
    from.panel_step = part_ * kStepBytes;
    const int64_t parts = ceil_div(steps, part_);
    for (int64_t begin = 0; begin < parts; begin += kPartsInL1) {
      const int64_t end = parts - begin < kPartsInL1 ? parts : begin + kPartsInL1;
      from.panel = codes.at + begin * from.panel_step;
      for (int64_t left = 0; left < lefts_; left += kRowTiles) {
        const int64_t row = left * left_rows_;
        from.left[0] = a.codes + begin * from.left_step + row * from.left_row;
        from.left[1] = from.left[0] + (kQuads ? left_rows_ : rows_) * from.left_row;
        char* const first = sums_ + row * kPlanes * kWordRowBytes;
        char* const sums[2] = {first, first + left_rows_ * kWordRowBytes};
        if (kQuads && left + 1 == lefts_) {
          multiply_tiles<Fetch::kInBursts, 1, kColumnTiles, kFirst>(
              tiles_, from, end - begin, sums, kWordRowBytes, begin > 0, ahead);
        } else {
          multiply_tiles<Fetch::kInBursts, 2, kColumnTiles, kFirst, kSecond>(
              tiles_, from, end - begin, sums, kWordRowBytes, begin > 0, ahead);
        }
        if (end == parts) add_rows(layout, group, a, row, row + kRowTiles * left_rows_, sums);
      }
    }
    codes.at += steps * kStepBytes;
    codes.ahead = ahead.at;
  }
  void end(float*) const {}

 private:
  static constexpr int64_t kStepQuads = QuantLayout::kStep / 4;
  static constexpr int64_t kStepBytes = kStepQuads * kWordRowBytes;
  static constexpr int64_t kPlanes = kQuads ? 1 : 2;
  static constexpr int64_t kRowTiles = kQuads ? 2 : 1;  // of two left operands
  static constexpr TileWords kFirst = TileWords::kSignedQuads;
  static constexpr TileWords kSecond = kQuads ? kFirst : TileWords::kUnsignedQuads;

  // Rows [begin, end), as far as there are.
  CPU_BACKEND_INLINE void add_rows(const QuantLayout& layout, const char* group, const TileRows& a,
                                   int64_t begin, int64_t end, char* const (&sums)[2]) {
    if (end > rows_) end = rows_;
    int64_t row = begin;
    for (; row + 4 <= end; row += 4) add_some_rows<4>(layout, group, a, row, row - begin, sums);
    for (; row < end; ++row) add_some_rows<1>(layout, group, a, row, row - begin, sums);
  }
  template <int kRows>
  CPU_BACKEND_INLINE void add_some_rows(const QuantLayout& layout, const char* group, TileRows a,
                                        int64_t row, int64_t place, char* const (&sums)[2]) {
    a.scales += row;
    a.starts += row;
    float* results = results_ + row * kPanelWidth;
    VecI sum[kRows][kPanelVecs] = {};
    Vec total[kRows][kPanelVecs];
    start_panel(layout, group, a, sum);
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPanelVecs; ++v) {
        const int64_t at = (place + r) * kWordRowBytes + v * kVectorBytes;
        VecU dot = load_raw<VecU>(sums[0] + at);
        if constexpr (!kQuads) dot = (dot << 8) + load_raw<VecU>(sums[1] + at);
        sum[r][v] = (VecI)((VecU)sum[r][v] + dot);
        total[r][v] = load(results + r * kPanelWidth + v * kLanes);
      }
    add_panel(layout, group, a, sum, total);
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPanelVecs; ++v)
        store(results + r * kPanelWidth + v * kLanes, total[r][v]);
  }

  int64_t rows_, lefts_, left_rows_;
  int64_t part_;  // steps
  Tiles tiles_;
  float* results_;
  char* sums_;
};

#endif

}  // namespace CPU_BACKEND_NAMESPACE

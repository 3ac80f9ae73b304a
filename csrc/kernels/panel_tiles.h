// A panel of bf16 multiplied in matrix tiles (isa/bf16_tiles.h): the counterpart of
// multiply_panel() in kernels/panel.h where the target has them, up to 32 rows by the panel's
// columns at a time.
#pragma once

#include "isa/bf16_tiles.h"
#include "kernels/panel.h"

#if defined(CPU_BACKEND_BF16_TILES)

namespace CPU_BACKEND_NAMESPACE {

// Tiles side by side in a panel, and the columns of one.
constexpr int kColumnTiles = kPanelWidth > kTileColumns ? kPanelWidth / kTileColumns : 1;
constexpr int kColumnsOfTile = kPanelWidth / kColumnTiles;
static_assert(kColumnTiles <= 2, "two tiles of the panel are loaded at a time");

// c[kRowTiles * tile_rows][kPanelWidth] (+)= a * panel; depth is a multiple of kTileDepth.
template <int kRowTiles>
CPU_BACKEND_INLINE void multiply_tile_rows(Tiles& tiles, int64_t tile_rows, const bf16_t* a,
                                           int64_t a_stride, const bf16_t* b, int64_t depth,
                                           float* c, bool accumulate) {
  constexpr int64_t kProductBytes = kPanelWidth * 4;
  constexpr int64_t kPanelBytes = kPanelWidth * 4;  // from one pair of rows to the next
  float* below = c + tile_rows * kPanelWidth;
  if (accumulate) {
    tiles.load<0>(c, kProductBytes);
    if constexpr (kColumnTiles > 1) tiles.load<1>(c + kColumnsOfTile, kProductBytes);
    if constexpr (kRowTiles > 1) tiles.load<2>(below, kProductBytes);
    if constexpr (kRowTiles > 1 && kColumnTiles > 1)
      tiles.load<3>(below + kColumnsOfTile, kProductBytes);
  } else {
    tiles.zero<0>();
    tiles.zero<1>();
    tiles.zero<2>();
    tiles.zero<3>();
  }
  for (int64_t k = 0; k < depth; k += kTileDepth) {
    tiles.load<6>(b + k * kPanelWidth, kPanelBytes);
    if constexpr (kColumnTiles > 1)
      tiles.load<7>(b + k * kPanelWidth + 2 * kColumnsOfTile, kPanelBytes);
    tiles.load<4>(a + k, 2 * a_stride);
    tiles.multiply<0, 0>();
    if constexpr (kColumnTiles > 1) tiles.multiply<0, 1>();
    if constexpr (kRowTiles > 1) {
      tiles.load<5>(a + tile_rows * a_stride + k, 2 * a_stride);
      tiles.multiply<1, 0>();
      if constexpr (kColumnTiles > 1) tiles.multiply<1, 1>();
    }
  }
  tiles.store<0>(c, kProductBytes);
  if constexpr (kColumnTiles > 1) tiles.store<1>(c + kColumnsOfTile, kProductBytes);
  if constexpr (kRowTiles > 1) tiles.store<2>(below, kProductBytes);
  if constexpr (kRowTiles > 1 && kColumnTiles > 1)
    tiles.store<3>(below + kColumnsOfTile, kProductBytes);
}

// c[rows][kPanelWidth] (+)= a[rows][depth] * panel.
static inline void multiply_in_tiles(int64_t rows, const bf16_t* a, int64_t a_stride,
                                     const bf16_t* b, int64_t depth, float* c, bool accumulate) {
  int64_t row = 0;
  if (rows >= kTileRows) {
    Tiles tiles(kTileRows, kColumnsOfTile);
    for (; row + 2 * kTileRows <= rows; row += 2 * kTileRows)
      multiply_tile_rows<2>(tiles, kTileRows, a + row * a_stride, a_stride, b, depth,
                            c + row * kPanelWidth, accumulate);
    for (; row + kTileRows <= rows; row += kTileRows)
      multiply_tile_rows<1>(tiles, kTileRows, a + row * a_stride, a_stride, b, depth,
                            c + row * kPanelWidth, accumulate);
  }
  if (row < rows) {  // tiles of fewer rows
    Tiles tiles(rows - row, kColumnsOfTile);
    multiply_tile_rows<1>(tiles, rows - row, a + row * a_stride, a_stride, b, depth,
                          c + row * kPanelWidth, accumulate);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

#endif

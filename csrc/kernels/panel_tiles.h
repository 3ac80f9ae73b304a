// A panel multiplied in matrix tiles (isa/tiles.h) where the target has them: two left operands by
// the panel's columns at a time.  multiply_in_tiles() is the counterpart of multiply_panel() in
// kernels/panel.h for bf16; kernels/quant_matrix.h multiplies codes.
#pragma once

#include "isa/tiles.h"
#include "kernels/panel.h"

#if defined(CPU_BACKEND_TILES)

namespace CPU_BACKEND_NAMESPACE {

// Tiles side by side in a panel, and the columns of one.
constexpr int kColumnTiles = kPanelWidth > kTileColumns ? kPanelWidth / kTileColumns : 1;
constexpr int kColumnsOfTile = kPanelWidth / kColumnTiles;
static_assert(kColumnTiles <= 2, "two tiles of the panel are loaded at a time");

constexpr int64_t kWordRowBytes = kPanelWidth * 4;  // a word of each column; a row of products

// Where the operands of a product lie, in bytes; steps are the depth of a tile.
struct TileOperands {
  const char* left[2];
  int64_t left_row, left_step;
  const char* panel;
  int64_t panel_step;
};

// A row of products for each row of the left operands, kWordRowBytes apart: product[i] (+)= left[i]
// * panel.
template <int kLefts, TileWords kFirst, TileWords kSecond = kFirst>
CPU_BACKEND_INLINE void multiply_tiles(Tiles& tiles, TileOperands from, int64_t steps,
                                       char* const (&product)[2], bool accumulate) {
  constexpr int64_t kRight = kColumnsOfTile * 4;
  if (accumulate) {
    tiles.load<0>(product[0], kWordRowBytes);
    if constexpr (kColumnTiles > 1) tiles.load<1>(product[0] + kRight, kWordRowBytes);
    if constexpr (kLefts > 1) tiles.load<2>(product[1], kWordRowBytes);
    if constexpr (kLefts > 1 && kColumnTiles > 1) tiles.load<3>(product[1] + kRight, kWordRowBytes);
  } else {
    tiles.zero<0>();
    tiles.zero<1>();
    tiles.zero<2>();
    tiles.zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    tiles.load<6>(from.panel, kWordRowBytes);
    if constexpr (kColumnTiles > 1) tiles.load<7>(from.panel + kRight, kWordRowBytes);
    tiles.load<4>(from.left[0], from.left_row);
    tiles.multiply<kFirst, 0, 0>();
    if constexpr (kColumnTiles > 1) tiles.multiply<kFirst, 0, 1>();
    if constexpr (kLefts > 1) {
      tiles.load<5>(from.left[1], from.left_row);
      tiles.multiply<kSecond, 1, 0>();
      if constexpr (kColumnTiles > 1) tiles.multiply<kSecond, 1, 1>();
      from.left[1] += from.left_step;
    }
    from.left[0] += from.left_step;
    from.panel += from.panel_step;
  }
  tiles.store<0>(product[0], kWordRowBytes);
  if constexpr (kColumnTiles > 1) tiles.store<1>(product[0] + kRight, kWordRowBytes);
  if constexpr (kLefts > 1) tiles.store<2>(product[1], kWordRowBytes);
  if constexpr (kLefts > 1 && kColumnTiles > 1) tiles.store<3>(product[1] + kRight, kWordRowBytes);
}

constexpr int kTileDepth = 2 * kTileWords;  // bf16

// c[kLefts * tile_rows][kPanelWidth] (+)= a * panel; depth is a multiple of kTileDepth.
template <int kLefts>
CPU_BACKEND_INLINE void multiply_tile_rows(Tiles& tiles, int64_t tile_rows, const bf16_t* a,
                                           int64_t a_stride, const bf16_t* b, int64_t depth,
                                           float* c, bool accumulate) {
  const TileOperands from{
      {reinterpret_cast<const char*>(a), reinterpret_cast<const char*>(a + tile_rows * a_stride)},
      2 * a_stride,
      2 * kTileDepth,
      reinterpret_cast<const char*>(b),
      kTileWords * kWordRowBytes};
  char* const products[2] = {reinterpret_cast<char*>(c),
                             reinterpret_cast<char*>(c + tile_rows * kPanelWidth)};
  multiply_tiles<kLefts, TileWords::kBf16Pairs>(tiles, from, depth / kTileDepth, products,
                                                accumulate);
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

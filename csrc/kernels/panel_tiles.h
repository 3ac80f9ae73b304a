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
// Each step fetches a part of what comes ahead.
template <int kLefts, TileWords kFirst, TileWords kSecond = kFirst>
CPU_BACKEND_INLINE void multiply_tiles(Tiles& tiles, TileOperands from, int64_t steps,
                                       char* const (&product)[2], bool accumulate, Ahead& ahead) {
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
    ahead.fetch_all(1);
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

// c[first + second][kPanelWidth] (+)= a * panel; depth is a multiple of kTileDepth.
template <int kLefts>
CPU_BACKEND_INLINE void multiply_tile_rows(Tiles& tiles, int64_t first, const bf16_t* a,
                                           int64_t a_stride, const bf16_t* b, int64_t depth,
                                           float* c, bool accumulate, Ahead& ahead) {
  const TileOperands from{
      {reinterpret_cast<const char*>(a), reinterpret_cast<const char*>(a + first * a_stride)},
      2 * a_stride,
      2 * kTileDepth,
      reinterpret_cast<const char*>(b),
      kTileWords * kWordRowBytes};
  char* const products[2] = {reinterpret_cast<char*>(c),
                             reinterpret_cast<char*>(c + first * kPanelWidth)};
  multiply_tiles<kLefts, TileWords::kBf16Pairs>(tiles, from, depth / kTileDepth, products,
                                                accumulate, ahead);
}

// c[rows][kPanelWidth] (+)= a[rows][depth] * panel; meanwhile as much of the one that comes next is
// fetched into L2.
static inline void multiply_in_tiles(int64_t rows, const bf16_t* a, int64_t a_stride,
                                     const bf16_t* b, int64_t depth, float* c, bool accumulate,
                                     const bf16_t* next) {
  constexpr int64_t kPairOfTiles = 2 * kTileRows;
  constexpr int64_t kDepthInL1 = 8 * kTileDepth;  // 16 KiB of a panel of 64-byte vectors
  const int64_t whole = rows / kPairOfTiles * kPairOfTiles;
  Ahead ahead{reinterpret_cast<const char*>(next),
              ceil_div(kTileWords * kWordRowBytes, ceil_div(rows, kPairOfTiles))};
  if (whole > 0) {
    Tiles tiles(kTileRows, kTileRows, kColumnsOfTile);
    const int64_t part = whole > kPairOfTiles ? kDepthInL1 : depth;
    for (int64_t k = 0; k < depth; k += part)
      for (int64_t r = 0; r < whole; r += kPairOfTiles)
        multiply_tile_rows<2>(tiles, kTileRows, a + r * a_stride + k, a_stride, b + k * kPanelWidth,
                              depth - k < part ? depth - k : part, c + r * kPanelWidth,
                              accumulate || k > 0, ahead);
  }
  const int64_t rest = rows - whole;
  if (rest == 0) return;
  a += whole * a_stride;
  c += whole * kPanelWidth;
  if (rest > kTileRows) {
    Tiles tiles(kTileRows, rest - kTileRows, kColumnsOfTile);
    multiply_tile_rows<2>(tiles, kTileRows, a, a_stride, b, depth, c, accumulate, ahead);
  } else {
    Tiles tiles(rest, rest, kColumnsOfTile);
    multiply_tile_rows<1>(tiles, rest, a, a_stride, b, depth, c, accumulate, ahead);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

#endif

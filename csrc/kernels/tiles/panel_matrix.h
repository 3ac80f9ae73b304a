// Panels multiplied in matrix tiles (isa/tiles.h) where the target has them: two left operands by
// the panel's columns at a time.  For bf16 multiply_in_tiles() takes whole panels of a weight, and
// multiply_panel() any part of one, as in kernels/tiles/panel.h; kernels/tiles/integer_matrix.h
// multiplies codes.
//
// Memory    a step of two by two tiles loads 4 KiB, more than L2 alone gives in the time: so a part
//           of the panel stays in L1 while all rows pass by, and the next panel is fetched
//           meanwhile.  Left operands are loaded with the hint that they need not stay in L1.
//           The other way round, 32 rows of up to 576 channels in L1 and eight panels passing by,
//           gained only where the weight was in L2 already; from memory, as in a model, products
//           of 32 to 1,024 rows were 0.86 to 1.09 times as fast (Granite Rapids).
// Results   of eight panels are rounded and stored together (kernels/gemm.h).  Rounding each panel
//           while it is in L1 gained up to 5 % of a product of 2,048 rows; storing past the caches
//           as well up to 20 %, but then the next op reads from memory, and whole encoders were
//           0.93 to 1.04 times as fast (Granite Rapids).
#pragma once

#include "isa/tiles.h"
#include "kernels/tiles/panel.h"

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
  int64_t panel_row, panel_step;
};

constexpr int kFetches = 4;  // of one step, evenly

// A row of products for each row of the left operands, `product_row` bytes apart: product[i] (+)=
// left[i] * panel.  Each step fetches a part of what comes ahead.  Few rows wait in the same
// buffers for their own lines: in one burst decode attention took a seventh longer.
template <Fetch kFetch, int kLefts, int kColumns, TileWords kFirst, TileWords kSecond = kFirst>
CPU_BACKEND_INLINE void multiply_tiles(Tiles& tiles, TileOperands from, int64_t steps,
                                       char* const (&product)[2], int64_t product_row,
                                       bool accumulate, Ahead& ahead) {
  constexpr int64_t kRight = kColumnsOfTile * 4;
  if (accumulate) {
    tiles.load<0>(product[0], product_row);
    if constexpr (kColumns > 1) tiles.load<1>(product[0] + kRight, product_row);
    if constexpr (kLefts > 1) tiles.load<2>(product[1], product_row);
    if constexpr (kLefts > 1 && kColumns > 1) tiles.load<3>(product[1] + kRight, product_row);
  } else {
    tiles.zero<0>();
    tiles.zero<1>();
    tiles.zero<2>();
    tiles.zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    ahead.fetch_all(1);
    tiles.load<6>(from.panel, from.panel_row);
    if constexpr (kFetch == Fetch::kEvenly) ahead.fetch_all(1);
    if constexpr (kColumns > 1) tiles.load<7>(from.panel + kRight, from.panel_row);
    if constexpr (kFetch == Fetch::kEvenly) ahead.fetch_all(1);
    tiles.load<4>(from.left[0], from.left_row);
    tiles.multiply<kFirst, 0, 0>();
    if constexpr (kFetch == Fetch::kEvenly) ahead.fetch_all(1);
    if constexpr (kColumns > 1) tiles.multiply<kFirst, 0, 1>();
    if constexpr (kLefts > 1) {
      tiles.load<5>(from.left[1], from.left_row);
      tiles.multiply<kSecond, 1, 0>();
      if constexpr (kColumns > 1) tiles.multiply<kSecond, 1, 1>();
      from.left[1] += from.left_step;
    }
    from.left[0] += from.left_step;
    from.panel += from.panel_step;
  }
  tiles.store<0>(product[0], product_row);
  if constexpr (kColumns > 1) tiles.store<1>(product[0] + kRight, product_row);
  if constexpr (kLefts > 1) tiles.store<2>(product[1], product_row);
  if constexpr (kLefts > 1 && kColumns > 1) tiles.store<3>(product[1] + kRight, product_row);
}

constexpr int kTileDepth = 2 * kTileWords;  // bf16
constexpr int64_t kPairOfTiles = 2 * kTileRows;

// A product of bf16: rows of a and c are `a_stride` and `c_stride` numbers apart, columns of b
// `b_stride`.
struct Bf16Product {
  const bf16_t* a;
  int64_t a_stride;
  const bf16_t* b;
  int64_t b_stride;
  float* c;
  int64_t c_stride;
};

// c[first + second] (+)= a * panel; depth is a multiple of kTileDepth.
template <Fetch kFetch, int kLefts, int kColumns>
CPU_BACKEND_INLINE void multiply_tile_rows(Tiles& tiles, int64_t first, const Bf16Product& of,
                                           int64_t depth, bool accumulate, Ahead& ahead) {
  const auto bytes = [](auto* x) { return reinterpret_cast<const char*>(x); };
  const TileOperands from{{bytes(of.a), bytes(of.a + first * of.a_stride)},
                          2 * of.a_stride,
                          2 * kTileDepth,
                          bytes(of.b),
                          4 * of.b_stride,
                          kTileWords * 4 * of.b_stride};
  char* const products[2] = {reinterpret_cast<char*>(of.c),
                             reinterpret_cast<char*>(of.c + first * of.c_stride)};
  multiply_tiles<kFetch, kLefts, kColumns, TileWords::kBf16Pairs>(
      tiles, from, depth / kTileDepth, products, 4 * of.c_stride, accumulate, ahead);
}

constexpr int64_t kDepthInL1 = 8 * kTileDepth;  // 16 KiB of a panel of 64-byte vectors

// c[rows][kPanelWidth] (+)= a[rows][depth] * panel; meanwhile as much of the one that comes next is
// fetched into L2.
static inline void multiply_in_tiles(int64_t rows, const bf16_t* a, int64_t a_stride,
                                     const bf16_t* b, int64_t depth, float* c, bool accumulate,
                                     const bf16_t* next) {
  const int64_t whole = rows / kPairOfTiles * kPairOfTiles;
  Ahead ahead{reinterpret_cast<const char*>(next),
              ceil_div(kTileWords * kWordRowBytes, ceil_div(rows, kPairOfTiles))};
  if (whole > 0) {
    Tiles tiles(kTileRows, kTileRows, kColumnsOfTile);
    const int64_t part = whole > kPairOfTiles ? kDepthInL1 : depth;
    for (int64_t k = 0; k < depth; k += part)
      for (int64_t r = 0; r < whole; r += kPairOfTiles)
        multiply_tile_rows<Fetch::kInBursts, 2, kColumnTiles>(
            tiles, kTileRows,
            {a + r * a_stride + k, a_stride, b + k * kPanelWidth, kPanelWidth, c + r * kPanelWidth,
             kPanelWidth},
            depth - k < part ? depth - k : part, accumulate || k > 0, ahead);
  }
  const int64_t rest = rows - whole;
  if (rest == 0) return;
  const Bf16Product of{a + whole * a_stride,    a_stride,   b, kPanelWidth,
                       c + whole * kPanelWidth, kPanelWidth};
  if (rest > kTileRows) {
    Tiles tiles(kTileRows, rest - kTileRows, kColumnsOfTile);
    multiply_tile_rows<Fetch::kInBursts, 2, kColumnTiles>(tiles, kTileRows, of, depth, accumulate,
                                                          ahead);
  } else {
    Tiles tiles(rest, rest, kColumnsOfTile);
    multiply_tile_rows<Fetch::kInBursts, 1, kColumnTiles>(tiles, rest, of, depth, accumulate,
                                                          ahead);
  }
}

// The last of a depth that is not whole steps, as one step that ends in zeros: neither what lies
// behind it in the panel nor in a row of a is used, as either may be NaN.
struct LastStep {
  bf16_t a[2 * kTileRows * kTileDepth];
  bf16_t b[kTileDepth * kPanelWidth];

  LastStep(const Bf16Product& of, int64_t rows, int64_t columns, int64_t depth) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < kTileDepth; ++k)
        a[r * kTileDepth + k] = k < depth ? of.a[r * of.a_stride + k] : bf16_t{};
    for (int64_t k = 0; k < kTileDepth; k += 2)
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t i = 0; i < 2; ++i)
          b[k * columns + 2 * c + i] = k + i < depth ? of.b[k * of.b_stride + 2 * c + i] : bf16_t{};
  }
};

// Up to 32 rows by one or two tiles of columns.
template <int kColumns>
CPU_BACKEND_INLINE void multiply_part(Tiles& tiles, int64_t rows, int64_t columns,
                                      const Bf16Product& of, int64_t depth, bool accumulate,
                                      Ahead& ahead) {
  const auto multiply = [&](const Bf16Product& part, int64_t deep, bool add) CPU_BACKEND_LAMBDA {
    if (rows > kTileRows) {
      multiply_tile_rows<Fetch::kEvenly, 2, kColumns>(tiles, kTileRows, part, deep, add, ahead);
    } else {
      multiply_tile_rows<Fetch::kEvenly, 1, kColumns>(tiles, rows, part, deep, add, ahead);
    }
  };
  const int64_t whole = depth / kTileDepth * kTileDepth;
  if (whole > 0) multiply(of, whole, accumulate);
  if (whole == depth) return;
  Bf16Product last = of;
  last.a += whole;
  last.b += whole * of.b_stride;
  const LastStep step(last, rows, columns, depth - whole);
  multiply({step.a, kTileDepth, step.b, columns, of.c, of.c_stride}, kTileDepth,
           accumulate || whole > 0);
}

// Up to 32 rows by any part of a panel; `tiles` are set up for them.
CPU_BACKEND_INLINE void multiply_part(Tiles& tiles, int64_t rows, int64_t columns,
                                      const Bf16Product& of, int64_t depth, bool accumulate,
                                      const bf16_t* next) {
  Ahead ahead{reinterpret_cast<const char*>(next),
              next ? kTileWords * 4 * of.b_stride / kFetches : 0};
  tiles.set_columns(columns < kColumnsOfTile ? columns : kColumnsOfTile);
  if (columns > kColumnsOfTile) {
    multiply_part<kColumnTiles>(tiles, rows, columns, of, depth, accumulate, ahead);
  } else {
    multiply_part<1>(tiles, rows, columns, of, depth, accumulate, ahead);
  }
}

// f(tiles, first row, rows) for up to 32 rows at a time.
template <class F>
CPU_BACKEND_INLINE void for_each_tile_pair(int64_t rows, F f) {
  for (int64_t r = 0; r < rows; r += kPairOfTiles) {
    const int64_t now = rows - r < kPairOfTiles ? rows - r : kPairOfTiles;
    Tiles tiles(now < kTileRows ? now : kTileRows, now > kTileRows ? now - kTileRows : now,
                kColumnsOfTile);
    f(tiles, r, now);
  }
}

// multiply_panel() for rows of bf16 by a part of a panel of bf16.
static inline void multiply_panel(int64_t rows, int64_t columns, const bf16_t* a, int64_t a_stride,
                                  const bf16_t* b, int64_t b_stride, int64_t depth, float* c,
                                  int64_t c_stride, bool accumulate, const bf16_t* next) {
  for_each_tile_pair(rows, [&](Tiles& tiles, int64_t r, int64_t now) CPU_BACKEND_LAMBDA {
    multiply_part(tiles, now, columns,
                  {a + r * a_stride, a_stride, b, b_stride, c + r * c_stride, c_stride}, depth,
                  accumulate, next);
  });
}

}  // namespace CPU_BACKEND_NAMESPACE

#endif

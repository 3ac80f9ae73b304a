// Matrix tiles: products of up to 16 rows of 32 bf16 with 16 pairs of rows of a panel (Intel AMX).
//
// Tiles 0 to 3 hold products, 4 and 5 rows of the left operand, 6 and 7 a part of the panel.  Each
// multiplication sums the first and the second elements of the pairs apart, adds both sums, and
// then adds that to the product, with subnormal numbers as zeros (TDPBF16PS).
#pragma once

#include "isa/vec.h"

#if defined(CPU_BACKEND_BF16_TILES)

namespace CPU_BACKEND_NAMESPACE {

constexpr int kTileRows = 16;
constexpr int kTileDepth = 32;    // bf16 of the left operand in one row of a tile
constexpr int kTileColumns = 16;  // fp32 of a product in one row of a tile

#if defined(__AMX_BF16__)

// The compiler's macros want the number of a tile as a literal.
class Tiles {
 public:
  // Products and left operands of `rows` rows.
  CPU_BACKEND_INLINE explicit Tiles(int64_t rows, int64_t) {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : kTileRows);
    }
    _tile_loadconfig(&config);
    // The loads below are opaque to the compiler: what they read must have been written.
    asm volatile("" ::: "memory");
  }
  CPU_BACKEND_INLINE ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  CPU_BACKEND_INLINE void zero() {
    if constexpr (kTile == 0) _tile_zero(0);
    if constexpr (kTile == 1) _tile_zero(1);
    if constexpr (kTile == 2) _tile_zero(2);
    if constexpr (kTile == 3) _tile_zero(3);
  }
  template <int kTile>
  CPU_BACKEND_INLINE void load(const void* from, int64_t stride_bytes) {
    if constexpr (kTile == 0) _tile_loadd(0, from, stride_bytes);
    if constexpr (kTile == 1) _tile_loadd(1, from, stride_bytes);
    if constexpr (kTile == 2) _tile_loadd(2, from, stride_bytes);
    if constexpr (kTile == 3) _tile_loadd(3, from, stride_bytes);
    if constexpr (kTile == 4) _tile_loadd(4, from, stride_bytes);
    if constexpr (kTile == 5) _tile_loadd(5, from, stride_bytes);
    if constexpr (kTile == 6) _tile_loadd(6, from, stride_bytes);
    if constexpr (kTile == 7) _tile_loadd(7, from, stride_bytes);
  }
  template <int kTile>
  CPU_BACKEND_INLINE void store(void* to, int64_t stride_bytes) {
    if constexpr (kTile == 0) _tile_stored(0, to, stride_bytes);
    if constexpr (kTile == 1) _tile_stored(1, to, stride_bytes);
    if constexpr (kTile == 2) _tile_stored(2, to, stride_bytes);
    if constexpr (kTile == 3) _tile_stored(3, to, stride_bytes);
  }
  // Product kRow * 2 + kColumn += left kRow * panel kColumn.
  template <int kRow, int kColumn>
  CPU_BACKEND_INLINE void multiply() {
    if constexpr (kRow == 0 && kColumn == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRow == 0 && kColumn == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRow == 1 && kColumn == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRow == 1 && kColumn == 1) _tile_dpbf16ps(3, 5, 7);
  }
};

#else

// The same by definition, for any CPU; `columns` of a product may be fewer where vectors are short.
class Tiles {
 public:
  Tiles(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}

  template <int kTile>
  void zero() {
    for (auto& row : products_[kTile])
      for (float& x : row) x = 0.0f;
  }
  template <int kTile>
  void load(const void* from, int64_t stride_bytes) {
    const char* at = static_cast<const char*>(from);
    const int64_t rows = kTile < 6 ? rows_ : kTileRows;
    const int64_t bytes = kTile < 4 || kTile >= 6 ? 4 * columns_ : 2 * kTileDepth;
    for (int64_t r = 0; r < rows; ++r)
      __builtin_memcpy(row<kTile>(r), at + r * stride_bytes, bytes);
  }
  template <int kTile>
  void store(void* to, int64_t stride_bytes) {
    for (int64_t r = 0; r < rows_; ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * stride_bytes, row<kTile>(r), 4 * columns_);
  }
  template <int kRow, int kColumn>
  void multiply() {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < columns_; ++c) {
        float sums[2] = {};
        for (int64_t k = 0; k < kTileDepth; ++k)
          sums[k % 2] = flush(flush(to_float(lefts_[kRow][r][k])) *
                                  flush(to_float(panels_[kColumn][k / 2][2 * c + k % 2])) +
                              sums[k % 2]);
        float& product = products_[kRow * 2 + kColumn][r][c];
        product = flush(flush(product) + flush(sums[0] + sums[1]));
      }
  }

 private:
  static float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f * x : x; }
  template <int kTile>
  void* row(int64_t r) {
    if constexpr (kTile < 4) return products_[kTile][r];
    if constexpr (kTile == 4 || kTile == 5) return lefts_[kTile - 4][r];
    if constexpr (kTile >= 6) return panels_[kTile - 6][r];
  }

  int64_t rows_, columns_;
  float products_[4][kTileRows][kTileColumns];
  bf16_t lefts_[2][kTileRows][kTileDepth];
  bf16_t panels_[2][kTileRows][2 * kTileColumns];
};

#endif

}  // namespace CPU_BACKEND_NAMESPACE

#endif

// Matrix tiles: products of up to 16 rows with 16 columns of a panel, 16 words of 32 bits deep
// (Intel AMX).
//
// Tiles 0 to 3 hold products, 4 and 5 rows of the left operand, 6 and 7 a part of the panel, one
// word of each column after the other.  What a word of a row and one of a column are:
//   kBf16Pairs      two bf16.  The first and the second elements of all pairs are summed apart,
//                   both sums are added, and that is added to the product, with subnormal numbers
//                   as zeros (TDPBF16PS)
//   kSignedQuads    four signed bytes, unsigned ones in the panel; sums are exact modulo 2^32
//                   (TDPBSUD)
//   kUnsignedQuads  the same, unsigned on both sides (TDPBUUD)
//   kSignedBoth     the same, signed on both sides (TDPBSSD)
#pragma once

#include "isa/vec.h"

#if defined(CPU_BACKEND_TILES)

namespace CPU_BACKEND_NAMESPACE {

constexpr int kTileRows = 16;
constexpr int kTileColumns = 16;
constexpr int kTileWords = 16;

enum class TileWords { kBf16Pairs, kSignedQuads, kUnsignedQuads, kSignedBoth };

#if defined(__AMX_TILE__)

// The compiler's macros want the number of a tile as a literal.
#define CPU_BACKEND_TILE_PRODUCT(f)                    \
  if constexpr (kRow == 0 && kColumn == 0) f(0, 4, 6); \
  if constexpr (kRow == 0 && kColumn == 1) f(1, 4, 7); \
  if constexpr (kRow == 1 && kColumn == 0) f(2, 5, 6); \
  if constexpr (kRow == 1 && kColumn == 1) f(3, 5, 7);

class Tiles {
 public:
  // Products and left operands of `first` and of `second` rows, `words` deep.
  CPU_BACKEND_INLINE Tiles(int64_t first, int64_t second, int64_t, int64_t words = kTileWords) {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; ++tile) {
      const bool left = tile == 4 || tile == 5;
      const bool is_second = tile == 2 || tile == 3 || tile == 5;
      config.row_bytes[tile] = static_cast<uint16_t>(left ? 4 * words : 64);
      config.rows[tile] = static_cast<uint8_t>(tile >= 6 ? words : is_second ? second : first);
    }
    // Of what it reads the instruction's macro names the first bytes alone.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  CPU_BACKEND_INLINE ~Tiles() { _tile_release(); }
  // Of a panel that is narrower than a tile, which it is not here.
  CPU_BACKEND_INLINE void set_columns(int64_t) {}
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
    // The load is opaque to the compiler: what it reads must have been written.
    asm volatile("" ::: "memory");
    if constexpr (kTile == 0) _tile_loadd(0, from, stride_bytes);
    if constexpr (kTile == 1) _tile_loadd(1, from, stride_bytes);
    if constexpr (kTile == 2) _tile_loadd(2, from, stride_bytes);
    if constexpr (kTile == 3) _tile_loadd(3, from, stride_bytes);
    if constexpr (kTile == 4) _tile_stream_loadd(4, from, stride_bytes);
    if constexpr (kTile == 5) _tile_stream_loadd(5, from, stride_bytes);
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
  template <TileWords kWords, int kRow, int kColumn>
  CPU_BACKEND_INLINE void multiply() {
    if constexpr (kWords == TileWords::kBf16Pairs) {
      CPU_BACKEND_TILE_PRODUCT(_tile_dpbf16ps)
    } else if constexpr (kWords == TileWords::kSignedQuads) {
      CPU_BACKEND_TILE_PRODUCT(_tile_dpbsud)
    } else if constexpr (kWords == TileWords::kSignedBoth) {
      CPU_BACKEND_TILE_PRODUCT(_tile_dpbssd)
    } else {
      CPU_BACKEND_TILE_PRODUCT(_tile_dpbuud)
    }
  }
};

#undef CPU_BACKEND_TILE_PRODUCT

#else

// The same by definition, for any CPU; `columns` of a product may be fewer where vectors are short.
class Tiles {
 public:
  Tiles(int64_t first, int64_t second, int64_t columns, int64_t words = kTileWords)
      : rows_{first, second}, columns_(columns), words_(words) {}
  void set_columns(int64_t columns) { columns_ = columns; }

  template <int kTile>
  void zero() {
    for (auto& row : products_[kTile])
      for (uint32_t& x : row) x = 0;
  }
  template <int kTile>
  void load(const void* from, int64_t stride_bytes) {
    const char* at = static_cast<const char*>(from);
    const int64_t bytes = 4 * (kTile == 4 || kTile == 5 ? words_ : columns_);
    for (int64_t r = 0; r < rows<kTile>(); ++r)
      __builtin_memcpy(row<kTile>(r), at + r * stride_bytes, bytes);
  }
  template <int kTile>
  void store(void* to, int64_t stride_bytes) {
    for (int64_t r = 0; r < rows<kTile>(); ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * stride_bytes, row<kTile>(r), 4 * columns_);
  }
  template <TileWords kWords, int kRow, int kColumn>
  void multiply() {
    for (int64_t r = 0; r < rows_[kRow]; ++r)
      for (int64_t c = 0; c < columns_; ++c) {
        uint32_t& product = products_[kRow * 2 + kColumn][r][c];
        product = kWords == TileWords::kBf16Pairs
                      ? float_bits(add_pairs(bits_float(product), kRow, r, kColumn, c))
                      : product + quads<kWords>(kRow, r, kColumn, c);
      }
  }

 private:
  static float flush(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f * x : x; }
  float add_pairs(float product, int left, int64_t r, int panel, int64_t c) const {
    float sums[2] = {};
    for (int64_t k = 0; k < words_; ++k) {
      const auto a = load_raw<Pair>(&lefts_[left][r][k]), b = load_raw<Pair>(&panels_[panel][k][c]);
      for (int i = 0; i < 2; ++i)
        sums[i] = flush(flush(to_float(a.of[i])) * flush(to_float(b.of[i])) + sums[i]);
    }
    return flush(flush(product) + flush(sums[0] + sums[1]));
  }
  template <TileWords kWords>
  uint32_t quads(int left, int64_t r, int panel, int64_t c) const {
    const auto widen = [](uint32_t word, int byte, bool is_signed) {
      const uint32_t x = word >> byte & 0xffu;
      return is_signed && x > 127 ? x | 0xffffff00u : x;
    };
    uint32_t sum = 0;
    for (int64_t k = 0; k < words_; ++k)
      for (int byte = 0; byte < 32; byte += 8)
        sum += widen(lefts_[left][r][k], byte, kWords != TileWords::kUnsignedQuads) *
               widen(panels_[panel][k][c], byte, kWords == TileWords::kSignedBoth);
    return sum;
  }
  template <int kTile>
  int64_t rows() const {
    if constexpr (kTile >= 6) return words_;
    return rows_[kTile == 2 || kTile == 3 || kTile == 5];
  }
  template <int kTile>
  void* row(int64_t r) {
    if constexpr (kTile < 4) return products_[kTile][r];
    if constexpr (kTile == 4 || kTile == 5) return lefts_[kTile - 4][r];
    if constexpr (kTile >= 6) return panels_[kTile - 6][r];
  }

  struct Pair {
    bf16_t of[2];
  };
  int64_t rows_[2], columns_, words_;
  uint32_t products_[4][kTileRows][kTileColumns];
  uint32_t lefts_[2][kTileRows][kTileWords];
  uint32_t panels_[2][kTileWords][kTileColumns];
};

#endif

}  // namespace CPU_BACKEND_NAMESPACE

#endif

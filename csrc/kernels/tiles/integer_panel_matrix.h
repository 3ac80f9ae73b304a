// Rows of 16-bit integers (kernels/tiles/integer_row.h) by panels of int8 codes in matrix tiles of
// bytes (isa/tiles.h), where the target has them: both planes of up to 16 rows by a panel's
// columns.
#pragma once

#include "kernels/tiles/integer_panel.h"
#include "kernels/tiles/panel_matrix.h"

#if defined(CPU_BACKEND_TILES)

namespace CPU_BACKEND_NAMESPACE {

// Numbers [begin, begin + depth) of the rows for which `tiles` are set up, at most
// kMaxIntegerDepth; b is where they meet the panel.
template <int kColumns>
CPU_BACKEND_INLINE void multiply_integers(Tiles& tiles, int64_t rows, int64_t columns,
                                          const IntegerProduct& of, int64_t begin, int64_t depth,
                                          bool accumulate) {
  constexpr TileWords kWords = TileWords::kSignedBoth;
  const int64_t part = integer_part(depth);
  const auto* const a = reinterpret_cast<const char*>(of.a + begin);
  const auto* const b = reinterpret_cast<const char*>(of.b);
  const TileOperands from{{a, a + part},   2 * of.a_stride,   2 * part, b,
                          4 * of.b_stride, part * of.b_stride};
  Ahead ahead{reinterpret_cast<const char*>(of.next), of.next ? part * of.b_stride / kFetches : 0};
  alignas(Ahead::kLine) char sums[2][kTileRows * kWordRowBytes];
  char* const planes[2] = {sums[0], sums[1]};
  multiply_tiles<Fetch::kEvenly, 2, kColumns, kWords>(tiles, from, ceil_div(depth, part), planes,
                                                      kWordRowBytes, false, ahead);
  for (int64_t r = 0; r < rows; ++r) {
    const float scale = integer_scale(of.a + r * of.a_stride, of.a_stride);
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t at = r * kWordRowBytes + 4 * c;
      const VecU sum = (load_raw<VecU>(sums[0] + at) << 8) + load_raw<VecU>(sums[1] + at);
      add_scaled(of.c + r * of.c_stride + c, accumulate ? ~0u : 0u, (VecI)sum, scale);
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

#endif

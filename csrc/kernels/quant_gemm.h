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
// Registers codes are unpacked by mask and shift where they are used: 2 instructions for the 32
//           products of a word of 8-bit codes and a row, 7 for the 64 of 4-bit ones, shared by all
//           rows of the tile.
// Threads   none: rows x panels given by the caller; scratch of quant_scratch_floats() per thread.
#pragma once

#include "core/quant.h"
#include "isa/dot.h"
#include "kernels/gemm.h"
#include "kernels/quant_float.h"
#include "kernels/quant_pack.h"
#include "kernels/quant_rows.h"

namespace CPU_BACKEND_NAMESPACE {

// Rows of the register tile: 4 x 2 sums, two vectors of codes, activations, a product and the mask
// fit 16 registers; 6 rows spill, a third of the speed at groups of 32.
constexpr int kQuantRows = kMaxRows == 12 ? 12 : 4;

typedef uint16_t VecHalves __attribute__((vector_size(kVectorBytes)));

// Shifts both halves of each lane.
CPU_BACKEND_INLINE VecU shift_halves(VecU x, int bits) { return (VecU)((VecHalves)x >> bits); }

template <int kRows>
struct IntTile {
  VecI sum[kRows][kPanelVecs];
};

// One word per column of codes as pairs: word i of `a` of each row meets the codes at 4 * place.
template <int kBits, int kPart>
CPU_BACKEND_INLINE VecU code_pairs(VecU word) {
  if constexpr (kBits == 8) return kPart == 0 ? word & 0x00ff00ffu : shift_halves(word, 8);
  // Channels (0, 1), (2, 3), (4, 5), (6, 7) begin at bits 0, 8, 4 and 12.
  constexpr int kBegin = kPart == 0 ? 0 : kPart == 1 ? 8 : kPart == 2 ? 4 : 12;
  if constexpr (kBegin == 12) return shift_halves(word, 12);
  return (kBegin ? shift_halves(word, kBegin) : word) & 0x000f000fu;
}

template <int kBits, int kPart, int kRows>
CPU_BACKEND_INLINE void dot_part(IntTile<kRows>& tile, const char* a, int64_t a_stride,
                                 const uint32_t* codes) {
  VecU pairs[kPanelVecs];
  for (int v = 0; v < kPanelVecs; ++v)
    pairs[v] = code_pairs<kBits, kPart>(load_raw<VecU>(codes + v * kLanes));
  for (int r = 0; r < kRows; ++r) {
    int32_t x;
    __builtin_memcpy(&x, a + r * a_stride + 4 * kPart, 4);
    const VecI both = broadcast(x);
    for (int v = 0; v < kPanelVecs; ++v)
      tile.sum[r][v] = dot_pairs(tile.sum[r][v], both, (VecI)pairs[v]);
  }
}

template <int kBits, int kRows>
CPU_BACKEND_INLINE void dot_steps_pairs(IntTile<kRows>& tile, const char* a, int64_t a_stride,
                                        const uint32_t* codes, int64_t steps) {
  for (int64_t s = 0; s < steps; ++s, a += 16, codes += step_words(kBits) * kPanelWidth) {
    dot_part<kBits, 0>(tile, a, a_stride, codes);
    dot_part<kBits, 1>(tile, a, a_stride, codes);
    if constexpr (kBits == 8) {
      dot_part<kBits, 0>(tile, a + 8, a_stride, codes + kPanelWidth);
      dot_part<kBits, 1>(tile, a + 8, a_stride, codes + kPanelWidth);
    } else {
      dot_part<kBits, 2>(tile, a, a_stride, codes);
      dot_part<kBits, 3>(tile, a, a_stride, codes);
    }
  }
}

template <int kBits, int kRows>
CPU_BACKEND_INLINE void dot_steps_quads(IntTile<kRows>& tile, const char* a, int64_t a_stride,
                                        const uint32_t* codes, int64_t steps) {
  constexpr int64_t kChain = kQuadChain / 2;  // two quads per step
  while (steps > 0) {
    const int64_t now = steps < kChain ? steps : kChain;
    QuadSum sums[kRows][kPanelVecs] = {};
    for (int64_t s = 0; s < now; ++s, a += 8, codes += step_words(kBits) * kPanelWidth) {
      for (int half = 0; half < 2; ++half) {
        VecU quads[kPanelVecs];
        for (int v = 0; v < kPanelVecs; ++v) {
          if constexpr (kBits == 8) {
            quads[v] = load_raw<VecU>(codes + half * kPanelWidth + v * kLanes);
          } else {
            const VecU word = load_raw<VecU>(codes + v * kLanes);
            quads[v] = (half ? shift_halves(word, 4) : word) & 0x0f0f0f0fu;
          }
        }
        for (int r = 0; r < kRows; ++r) {
          int32_t x;
          __builtin_memcpy(&x, a + r * a_stride + 4 * half, 4);
          const VecI four = broadcast(x);
          for (int v = 0; v < kPanelVecs; ++v) sums[r][v] = dot_quads(sums[r][v], four, quads[v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kPanelVecs; ++v)
        tile.sum[r][v] = add_quad_sum(tile.sum[r][v], sums[r][v]);
    steps -= now;
  }
}

// The quantized rows of a tile at one segment: strides count elements.
struct TileRows {
  const char* codes;
  const float* scales;
  const int32_t* sums;
  int64_t stride;  // in bytes, a multiple of 4
};

// What the dot product of a segment starts from: minus zero * sum; with kOffset, zero.
template <int kRows>
CPU_BACKEND_INLINE void start_tile(const QuantLayout& layout, const char* group, const TileRows& a,
                                   IntTile<kRows>& tile) {
  const int64_t stride = a.stride / 4;
  switch (layout.zero) {
    case ZeroKind::kMiddle:
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVecs; ++v)
          tile.sum[r][v] = broadcast(-a.sums[r * stride] * (1 << (layout.bits - 1)));
      return;
    case ZeroKind::kPoint:
      for (int v = 0; v < kPanelVecs; ++v) {
        const VecI zero =
            round_to_int(load_scale(layout.scale_type, group + scale_bytes(layout), v));
        for (int r = 0; r < kRows; ++r)
          tile.sum[r][v] = (VecI)((VecU)zero * (VecU)broadcast(-a.sums[r * stride]));
      }
      return;
    case ZeroKind::kOffset:
      return;
  }
}

// block[kRows][kPanelWidth] += one segment, scaled.
template <int kRows>
CPU_BACKEND_INLINE void add_tile(const QuantLayout& layout, const char* group, const TileRows& a,
                                 const IntTile<kRows>& tile, float* block) {
  const int64_t stride = a.stride / 4;
  for (int v = 0; v < kPanelVecs; ++v, block += kLanes) {
    const Vec scale = load_scale(layout.scale_type, group, v);
    for (int r = 0; r < kRows; ++r) {
      float* at = block + r * kPanelWidth;
      store(at, load(at) + from_int(tile.sum[r][v]) * a.scales[r * stride] * scale);
    }
    if (layout.zero != ZeroKind::kOffset) continue;
    const Vec zero = load_scale(layout.scale_type, group + scale_bytes(layout), v);
    for (int r = 0; r < kRows; ++r) {
      float* at = block + r * kPanelWidth;
      const float sum = static_cast<float>(a.sums[r * stride]) * a.scales[r * stride];
      store(at, load(at) + zero * sum);
    }
  }
}

// Rows [row, row + kRows) of one panel into block[kRows][kPanelWidth].
template <int kBits, bool kQuads, int kRows>
void quant_tile(const QuantGemmArgs& args, int64_t row, const char* panel, float* block) {
  const QuantLayout& layout = args.layout;
  const int64_t segment = layout.segment_steps();
  TileRows a;
  a.stride = quant_row_bytes(layout);
  a.codes = static_cast<const char*>(args.rows) + row * a.stride;
  a.scales = reinterpret_cast<const float*>(a.codes + row_codes_bytes(layout));
  a.sums = reinterpret_cast<const int32_t*>(a.scales + layout.segments());
  for (int i = 0; i < kRows * kPanelVecs; ++i) store(block + i * kLanes, Vec{});
  for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
    const int64_t channels = layout.k - begin < layout.group ? layout.k - begin : layout.group;
    const char* group = panel;
    const uint32_t* codes = reinterpret_cast<const uint32_t*>(group + group_head_bytes(layout));
    for (int64_t left = ceil_div(channels, QuantLayout::kStep); left > 0; left -= segment) {
      const int64_t steps = left < segment ? left : segment;
      IntTile<kRows> tile{};
      start_tile(layout, group, a, tile);
      if constexpr (kQuads) {
        dot_steps_quads<kBits>(tile, a.codes, a.stride, codes, steps);
      } else {
        dot_steps_pairs<kBits>(tile, a.codes, a.stride, codes, steps);
      }
      add_tile(layout, group, a, tile, block);
      ++a.scales;
      ++a.sums;
      a.codes += steps * QuantLayout::kStep * (kQuads ? 1 : 2);
      codes += steps * step_words(kBits) * kPanelWidth;
    }
    panel = reinterpret_cast<const char*>(codes);
  }
}

// Any number of rows up to kQuantRows, as a compile-time constant.
template <int kBits, bool kQuads, int kRows = kQuantRows>
CPU_BACKEND_INLINE void quant_rows(int64_t count, const QuantGemmArgs& args, int64_t row,
                                   const char* panel, float* block) {
  if (count == kRows) {
    quant_tile<kBits, kQuads, kRows>(args, row, panel, block);
  } else if constexpr (kRows > 1) {
    quant_rows<kBits, kQuads, kRows - 1>(count, args, row, panel, block);
  }
}

constexpr int64_t quant_scratch_floats() { return float_scratch_floats(); }

// Rows [rows.begin, rows.end) x panels [panels.begin, panels.end) of c, whose type is T or fp32.
template <class T>
void quant_gemm(const QuantGemmArgs& args, Slice rows, Slice panels, float* scratch) {
  const QuantLayout& layout = args.layout;
  const bool quads = uses_quads(layout);
  const bool floats = layout.activations == Activations::kFloat;
  const int64_t row_step = floats ? kFloatRows : kQuantRows;
  GemmArgs out{};
  out.epilogue.bias = args.bias;
  out.c = args.c;
  out.c_stride = args.c_stride;
  out.float_output = args.float_output;
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    const char* panel = static_cast<const char*>(args.packed) + p * panel_bytes(layout);
    const int64_t column = p * kPanelWidth;
    const int64_t columns = layout.n - column < kPanelWidth ? layout.n - column : kPanelWidth;
    for (int64_t r = rows.begin; r < rows.end; r += row_step) {
      const int64_t count = rows.end - r < row_step ? rows.end - r : row_step;
      if (floats) {
        float_block(args, r, count, panel, scratch);
      } else if (layout.bits == 4) {
        quads ? quant_rows<4, true>(count, args, r, panel, scratch)
              : quant_rows<4, false>(count, args, r, panel, scratch);
      } else if (kQuads8 && quads) {
        quant_rows<8, kQuads8>(count, args, r, panel, scratch);
      } else {
        quant_rows<8, false>(count, args, r, panel, scratch);
      }
      if (args.row_shift) {
        for (int64_t i = 0; i < count; ++i)
          for (int64_t c = 0; c < columns; ++c)
            scratch[i * kPanelWidth + c] += args.row_shift[r + i] * args.column_shift[column + c];
      }
      store_block<T>(out, r, count, column, columns, scratch, kPanelWidth);
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

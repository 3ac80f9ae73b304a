// Products of fp32 activations and codes that are floating-point numbers themselves: fp8 weights.
//
//   c[m][n] = sum over the segments of every group of scale[g][n] * sum of a[m][k] * code[n][k]
//
// Numerics  codes are exact in fp32; a segment is one chain of at most 128 multiply-adds, scaled
// and
//           added in fp32 in the order of k.  Activations stay as they are, also where the
//           checkpoint was made for fp8 ones.
// Registers one to three rows decode the codes where they multiply; from four rows on a segment is
//           decoded once into `decoded`, for all rows of the block.
// Threads   none, as in kernels/quant_gemm.h, which calls this.
#pragma once

#include "core/quant.h"
#include "isa/dot.h"
#include "kernels/quant_pack.h"
#include "kernels/quant_rows.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t kFloatRows = 48;  // rows that share a decoded segment
constexpr int64_t kDecodeFrom = 4;  // decoding costs as much as two rows' products
constexpr int64_t kFloatSegment = QuantLayout::kStep * QuantLayout::kSegmentSteps;

constexpr int64_t float_scratch_floats() { return kFloatSegment * kPanelWidth; }

// block[kRows][kPanelWidth] += scale * product of `channels` channels, already decoded or not.
template <class Code, int kRows>
void float_tile(const float* a, int64_t a_stride, const Code* codes, int64_t channels,
                const Vec (&scale)[kPanelVecs], float* block) {
  Vec sum[kRows][kPanelVecs] = {};
  for (int64_t k = 0; k < channels; ++k, codes += kPanelWidth) {
    Vec code[kPanelVecs];
    for (int v = 0; v < kPanelVecs; ++v) code[v] = load(codes + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec x = broadcast(a[r * a_stride + k]);
      for (int v = 0; v < kPanelVecs; ++v) sum[r][v] = x * code[v] + sum[r][v];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanelVecs; ++v) {
      float* at = block + r * kPanelWidth + v * kLanes;
      store(at, sum[r][v] * scale[v] + load(at));
    }
}

// Any number of rows up to kMaxRows, as a compile-time constant.
template <class Code, int kRows = kMaxRows>
CPU_BACKEND_INLINE void float_rows(int64_t rows, const float* a, int64_t a_stride,
                                   const Code* codes, int64_t channels,
                                   const Vec (&scale)[kPanelVecs], float* block) {
  if (rows == kRows) {
    float_tile<Code, kRows>(a, a_stride, codes, channels, scale, block);
  } else if constexpr (kRows > 1) {
    float_rows<Code, kRows - 1>(rows, a, a_stride, codes, channels, scale, block);
  }
}

// Up to kFloatRows rows of one panel into block[rows][kPanelWidth].
static inline void float_block(const QuantGemmArgs& args, int64_t row, int64_t rows,
                               const char* panel, float* block, float* decoded) {
  const QuantLayout& layout = args.layout;
  const int64_t row_bytes = quant_row_bytes(layout);
  const int64_t a_stride = row_bytes / 4;
  const float* a =
      reinterpret_cast<const float*>(static_cast<const char*>(args.rows.data) + row * row_bytes);
  const bool decode = rows >= kDecodeFrom;
  for (int64_t i = 0; i < rows * kPanelVecs; ++i) store(block + i * kLanes, Vec{});
  for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
    const int64_t channels = layout.k - begin < layout.group ? layout.k - begin : layout.group;
    Vec scale[kPanelVecs];
    for (int v = 0; v < kPanelVecs; ++v)
      scale[v] = load_scale(layout.scale_type, panel, v) * kUnit<fp8_t>;
    const fp8_t* codes = reinterpret_cast<const fp8_t*>(panel + group_head_bytes(layout));
    const int64_t padded = round_up(channels, QuantLayout::kStep);
    for (int64_t done = 0; done < padded; done += kFloatSegment) {
      const int64_t now = padded - done < kFloatSegment ? padded - done : kFloatSegment;
      if (decode) {
        for (int64_t i = 0; i < now * kPanelVecs; ++i)
          store(decoded + i * kLanes, load(codes + i * kLanes));
      }
      for (int64_t r = 0; r < rows; r += kMaxRows) {
        const int64_t count = rows - r < kMaxRows ? rows - r : kMaxRows;
        float* at = block + r * kPanelWidth;
        decode ? float_rows(count, a + r * a_stride, a_stride, decoded, now, scale, at)
               : float_rows(count, a + r * a_stride, a_stride, codes, now, scale, at);
      }
      a += now;
      codes += now * kPanelWidth;
    }
    panel = reinterpret_cast<const char*>(codes);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

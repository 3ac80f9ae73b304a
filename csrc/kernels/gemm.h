// Linear layers: c[m][n] = sum_k a[m][k] * weight[n][k] + bias[n], weight packed once at load.
//
// Packed    panels of kPanelWidth columns of n (see kernels/panel.h), one after the other; columns
//           past n are zeros.  The storage type is the checkpoint's: fp32, bf16 or fp16, widened
//           in registers.
// Shapes    any m, n, k >= 1.
// Numerics  fp32 accumulation in the order of k; bias added in fp32; one rounding, on store.
// Threads   none: rows x panels given by the caller; scratch of gemm_scratch_floats() per thread.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "kernels/panel.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t gemm_scratch_floats() { return kMaxRows * kWidePanels * kPanelWidth; }

template <class T>
int64_t packed_elements(int64_t n, int64_t k) {
  return ceil_div(n, kPanelWidth) * panel_elements<T>(k, kPanelWidth);
}

template <class T>
void pack_weight(const PackArgs& args, Slice panels) {
  const T* weight = static_cast<const T*>(args.weight);
  const int64_t elements = panel_elements<T>(args.k, kPanelWidth);
  for (int64_t p = panels.begin; p < panels.end; ++p) {
    T* packed = static_cast<T*>(args.packed) + p * elements;
    for (int64_t i = 0; i < elements; ++i) packed[i] = T{};
    for (int64_t c = 0; c < kPanelWidth && p * kPanelWidth + c < args.n; ++c) {
      const T* column = weight + (p * kPanelWidth + c) * args.n_stride;
      for (int64_t k = 0; k < args.k; ++k)
        packed[panel_offset<T>(k, c, kPanelWidth)] = column[k * args.k_stride];
    }
  }
}

// A row lies in one column of its panel; the panel is read front to back.
template <class T>
void unpack_rows(const UnpackArgs& args, Slice rows) {
  const int64_t elements = panel_elements<T>(args.k, kPanelWidth);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int64_t column = args.ids[r] % kPanelWidth;
    const T* panel = static_cast<const T*>(args.packed) + args.ids[r] / kPanelWidth * elements;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    for (int64_t k = 0; k < args.k; ++k) y[k] = panel[panel_offset<T>(k, column, kPanelWidth)];
  }
}

template <class T, class Out>
void store_block_as(const GemmArgs& args, int64_t row, int64_t rows, int64_t column,
                    int64_t columns, const float* block, int64_t block_stride) {
  const T* bias = args.bias ? static_cast<const T*>(args.bias) + column : nullptr;
  for (int64_t r = 0; r < rows; ++r) {
    Out* c = static_cast<Out*>(args.c) + (row + r) * args.c_stride + column;
    for_each_vector(columns, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = load(block + r * block_stride + i);
      if (bias) v = v + load_n(bias + i, n);
      store_n(c + i, v, n);
    });
  }
}

template <class T>
void store_block(const GemmArgs& args, int64_t row, int64_t rows, int64_t column, int64_t columns,
                 const float* block, int64_t block_stride) {
  if (args.float_output) {
    store_block_as<T, float>(args, row, rows, column, columns, block, block_stride);
  } else {
    store_block_as<T, T>(args, row, rows, column, columns, block, block_stride);
  }
}

// Rows [rows.begin, rows.end) x panels [panels.begin, panels.end) of c.
template <class T>
void gemm(const GemmArgs& args, Slice rows, Slice panels, float* scratch) {
  const int64_t elements = panel_elements<T>(args.k, kPanelWidth);
  const T* packed = static_cast<const T*>(args.packed);
  constexpr int64_t kStride = kWidePanels * kPanelWidth;
  const auto multiply_wide = [&](int64_t row, int64_t panel) CPU_BACKEND_LAMBDA {
    multiply_tile<T, 1, kPanelVecs, kWidePanels>(args.a + row * args.a_stride, args.a_stride,
                                                 packed + panel * elements, kPanelWidth, elements,
                                                 args.k, scratch, kStride, false);
  };
  const bool single = rows.end - rows.begin == 1;
  for (int64_t p = panels.begin; p < panels.end;) {
    const int64_t column = p * kPanelWidth;
    if (single && p + kWidePanels <= panels.end) {
      multiply_wide(rows.begin, p);
      const int64_t columns = args.n - column < kStride ? args.n - column : kStride;
      store_block<T>(args, rows.begin, 1, column, columns, scratch, kStride);
      p += kWidePanels;
      continue;
    }
    const int64_t columns = args.n - column < kPanelWidth ? args.n - column : kPanelWidth;
    for (int64_t r = rows.begin; r < rows.end; r += kMaxRows) {
      const int64_t count = rows.end - r < kMaxRows ? rows.end - r : kMaxRows;
      multiply_panel<T>(count, kPanelWidth, args.a + r * args.a_stride, args.a_stride,
                        packed + p * elements, kPanelWidth, args.k, scratch, kStride, false);
      store_block<T>(args, r, count, column, columns, scratch, kStride);
    }
    ++p;
  }
}

// y[i] = fp32 of x[i]
template <class T>
void to_float_rows(const void* x, int64_t x_stride, float* y, int64_t size, Slice rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* source = static_cast<const T*>(x) + r * x_stride;
    for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store_n(y + r * size + i, load_n(source + i, n), n);
    });
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

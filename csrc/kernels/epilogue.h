// What follows a product of a packed weight while its results are in the cache: bias, then
// residual, activation, or activation and product of the two halves of a gate and up projection.
//
// Panels    with `parts` = 2 (two weights stacked along n) panels alternate between the two, so
//           that neighbours hold the same columns of both; results go to their natural columns.
// Numerics  without residual and activation: bias added in fp32, one rounding, on store.  With one:
//           what rounding the product on store and then running the separate op on the stored value
//           gives, bit for bit but for the last places of a gated fp32 activation.
#pragma once

#include "core/view.h"
#include "kernels/activation.h"
#include "kernels/tiles/panel.h"

namespace CPU_BACKEND_NAMESPACE {

// What is left of a product once it is stored.
template <class T>
CPU_BACKEND_INLINE Vec rounded(Vec x) {
  if constexpr (kSame<T, bf16_t>) return widen_bf16(narrow_normal_bf16(x));
  T stored[kLanes];
  store(stored, x);
  return load(stored);
}

template <class T, class Out>
void store_panel_as(const GemmEpilogue& to, int64_t row, int64_t rows, Slice columns,
                    const float* block) {
  const int64_t size = columns.end - columns.begin;
  Vec bias[kPanelVecs];
  for (int v = 0; v < kPanelVecs; ++v) bias[v] = -Vec{};  // which changes nothing
  if (to.bias)
    for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      bias[i / kLanes] = load_n(static_cast<const T*>(to.bias) + columns.begin + i, n);
    });
  const Out* residual = static_cast<const Out*>(to.residual);
  Out* c = static_cast<Out*>(to.c) + row * to.c_stride + columns.begin;
  const auto store_row = [&](int64_t r, int64_t r_size) CPU_BACKEND_LAMBDA {
    const Out* add = residual ? residual + (row + r) * to.residual_stride + columns.begin : nullptr;
    for_each_vector(r_size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const Vec v = load(block + r * kPanelWidth + i) + bias[i / kLanes];
      if (add) {
        store_n(c + r * to.c_stride + i, rounded<Out>(v) + load_n(add + i, n), n);
      } else {
        store_normal_n(c + r * to.c_stride + i, v, n);
      }
    });
  };
  if (size == kPanelWidth) {
    for (int64_t r = 0; r < rows; ++r) store_row(r, kPanelWidth);
  } else {
    for (int64_t r = 0; r < rows; ++r) store_row(r, size);
  }
  if (to.activated)  // of what is stored, which is in L1
    activation<Out>({c, to.c_stride, c, to.c_stride, size, to.activation, false, false}, {0, rows});
}

// Blocks of a gate and of its projection, whose columns begin there.
template <class T, Activation kKind>
void store_gated_as(const GemmEpilogue& to, int64_t row, int64_t rows, Slice columns,
                    int64_t up_column, const float* gates, const float* ups) {
  const T* bias = static_cast<const T*>(to.bias);
  for (int64_t r = 0; r < rows; ++r) {
    const float* gate = gates + r * kPanelWidth;
    const float* up = ups + r * kPanelWidth;
    T* c = static_cast<T*>(to.c) + (row + r) * to.c_stride + columns.begin;
    for_each_vector(columns.end - columns.begin, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec g = load(gate + i);
      Vec u = load(up + i);
      if (bias) {
        g = g + load_n(bias + columns.begin + i, n);
        u = u + load_n(bias + up_column + i, n);
      }
      store_normal_n(c + i, activate_and_multiply<kKind, T>(rounded<T>(g), rounded<T>(u)), n);
    });
  }
}

template <class T>
void store_gated(const GemmEpilogue& to, int64_t row, int64_t rows, Slice columns,
                 int64_t up_column, const float* gates, const float* ups) {
  switch (to.activation) {
    case Activation::kSilu:
      return store_gated_as<T, Activation::kSilu>(to, row, rows, columns, up_column, gates, ups);
    case Activation::kGelu:
      return store_gated_as<T, Activation::kGelu>(to, row, rows, columns, up_column, gates, ups);
    case Activation::kGeluTanh:
      return store_gated_as<T, Activation::kGeluTanh>(to, row, rows, columns, up_column, gates,
                                                      ups);
    case Activation::kGeluQuick:
      return store_gated_as<T, Activation::kGeluQuick>(to, row, rows, columns, up_column, gates,
                                                       ups);
    case Activation::kSigmoid:
      return store_gated_as<T, Activation::kSigmoid>(to, row, rows, columns, up_column, gates, ups);
    case Activation::kRelu2:
      return;  // may_have_gate() says no
    case Activation::kSwigluOai:
      return store_gated_as<T, Activation::kSwigluOai>(to, row, rows, columns, up_column, gates,
                                                       ups);
    case Activation::kSwigluStep:
      return store_gated_as<T, Activation::kSwigluStep>(to, row, rows, columns, up_column, gates,
                                                        ups);
  }
}

// The lines of c that a tile writes, while it is multiplied: a store that waits for its line stops
// what follows.  With each tile stored by itself and rows of a fetched one tile ahead it took
// products of 2,048 rows 0.89 to 0.99 of the time (384 to 2048 channels, bf16 in pairs, Zen 4; with
// fp32 and on AVX2 0.91 to 1.00).
template <class T>
CPU_BACKEND_INLINE void fetch_results(const GemmEpilogue& to, Slice rows, int64_t column) {
  const int64_t bytes = to.float_output ? sizeof(float) : sizeof(T);
  const char* const c = static_cast<const char*>(to.c) + column * bytes;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    __builtin_prefetch(c + r * to.c_stride * bytes, 1);
}

// Rows of results [panels][block_rows][kPanelWidth] of a weight of n columns to their rows of c,
// which begin at `row`; with a gate panels come in whole pairs.  A few rows of all panels at a
// time, so that lines of a row that are neighbours are written one after the other.
template <class T>
void store_panels(const GemmEpilogue& to, int64_t n, int parts, int64_t row, int64_t rows,
                  Slice panels, const float* block, int64_t block_rows) {
  const int step = to.gated ? 2 : 1;
  const int64_t rows_at_once = panels.end - panels.begin > step ? 8 : rows;
  for (int64_t r = 0; r < rows; r += rows_at_once) {
    const int64_t some = rows - r < rows_at_once ? rows - r : rows_at_once;
    const float* from = block + r * kPanelWidth;
    for (int64_t p = panels.begin; p < panels.end;
         p += step, from += step * block_rows * kPanelWidth) {
      const Slice columns = panel_columns(n, parts, p);
      if (to.gated) {
        store_gated<T>(to, row + r, some, columns, panel_columns(n, parts, p + 1).begin, from,
                       from + block_rows * kPanelWidth);
      } else if (to.float_output) {
        store_panel_as<T, float>(to, row + r, some, columns, from);
      } else {
        store_panel_as<T, T>(to, row + r, some, columns, from);
      }
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

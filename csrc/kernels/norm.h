// Row-wise RMS norm: y[r][c] = x[r][c] / sqrt(mean(x[r]^2) + eps) * weight[c]
// (Zhang and Sennrich 2019), alone or after `residual += x`.
//
// Shapes    x, y, residual: rows x hidden; rows may be strided; y may be x.
// Numerics  with a residual, the sum is rounded to the storage type first and the norm is taken of
//           the rounded value, as the host's models define it.  Squares are summed in fp32.
// Threads   none: rows [slice.begin, slice.end) only; a row never depends on another.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
void rms_norm(const NormArgs& args, Slice rows) {
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    T* residual =
        args.residual ? static_cast<T*>(args.residual) + r * args.residual_stride : nullptr;
    Vec sum{};
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = load_n(x + i, n);
      if (residual) {
        store_n(residual + i, v + load_n(residual + i, n), n);
        v = load_n(residual + i, n);
      }
      sum = v * v + sum;
    });
    const float mean_square = sum_lanes(sum) / static_cast<float>(args.hidden);
    const float scale = 1.0f / __builtin_sqrtf(mean_square + args.epsilon);
    const T* source = residual ? residual : x;
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = load_n(source + i, n) * scale;
      if (weight) v = v * load_n(weight + i, n);
      store_n(y + i, v, n);
    });
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

// Row-wise norms.
//
// RMS norm: y[r][c] = x[r][c] / sqrt(mean(x[r]^2) + eps) * weight[c]
// (Zhang and Sennrich 2019), alone, after `residual += x`, or with a gate: times act(gate[r][c])
// afterwards or, gate_first, before (Mamba-2, gated delta nets).
//
// Layer norm: y[r][c] = (x[r][c] - mean(x[r])) / sqrt(variance(x[r]) + eps) * weight[c] + bias[c]
// (Ba, Kiros and Hinton 2016), of x or of x + residual.
//
// Shapes    x, y, residual, gate: rows x hidden; rows may be strided; y may be x or the gate.
// Numerics  with a residual, the sum is rounded to the storage type first and the norm is taken of
//           the rounded value, as the host's models define it.  Squares are summed in fp32; weight,
//           bias and gate are applied in fp32, and the result is rounded once.  A variance is the
//           mean of squared differences from the mean: nothing cancels where the mean is large.
// Threads   none: rows [slice.begin, slice.end) only; a row never depends on another.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "kernels/activation.h"

namespace CPU_BACKEND_NAMESPACE {

// A row of a norm's gate, if it has one.
template <class T>
struct NormGate {
  const T* row;
  Activation activation;

  CPU_BACKEND_INLINE Vec apply(Vec v, int64_t i, int n) const {
    if (!row) return v;
    const Vec gate = load_n(row + i, n);
    return v * (activation == Activation::kSigmoid ? activate<Activation::kSigmoid>(gate)
                                                   : activate<Activation::kSilu>(gate));
  }
};

template <class T>
void rms_norm(const NormArgs& args, Slice rows) {
  const T* weight = static_cast<const T*>(args.weight);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    T* residual =
        args.residual ? static_cast<T*>(args.residual) + r * args.residual_stride : nullptr;
    const T* gate_row =
        args.gate ? static_cast<const T*>(args.gate) + r * args.gate_stride : nullptr;
    const NormGate<T> before{args.gate_first ? gate_row : nullptr, args.gate_activation};
    const NormGate<T> after{args.gate_first ? nullptr : gate_row, args.gate_activation};
    Vec sum{};
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = load_n(x + i, n);
      if (residual) {
        store_n(residual + i, v + load_n(residual + i, n), n);
        v = load_n(residual + i, n);
      }
      v = before.apply(v, i, n);
      sum = v * v + sum;
    });
    const float mean_square = sum_lanes(sum) / static_cast<float>(args.hidden);
    const float scale = 1.0f / __builtin_sqrtf(mean_square + args.epsilon);
    const T* source = residual ? residual : x;
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = before.apply(load_n(source + i, n), i, n) * scale;
      if (weight) v = v * (load_n(weight + i, n) + args.weight_offset);
      store_normal_n(y + i, after.apply(v, i, n), n);
    });
  }
}

// The sum with a residual waits in y.
template <class T>
void layer_norm(const LayerNormArgs& args, Slice rows) {
  const T* weight = static_cast<const T*>(args.weight);
  const T* bias = static_cast<const T*>(args.bias);
  const float count = static_cast<float>(args.hidden);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    const T* residual =
        args.residual ? static_cast<const T*>(args.residual) + r * args.residual_stride : nullptr;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    Vec sum{};
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = load_n(x + i, n);
      if (residual) {
        store_n(y + i, v + load_n(residual + i, n), n);
        v = load_n(y + i, n);
      }
      sum = sum + v;
    });
    const float mean = sum_lanes(sum) / count;
    const T* source = residual ? y : x;
    Vec squares{};
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const Vec v = select(lane_index(0) < n, load_n(source + i, n) - mean, Vec{});
      squares = v * v + squares;
    });
    const float scale = 1.0f / __builtin_sqrtf(sum_lanes(squares) / count + args.epsilon);
    for_each_vector(args.hidden, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec v = (load_n(source + i, n) - mean) * scale;
      if (weight) v = v * load_n(weight + i, n);
      if (bias) v = v + load_n(bias + i, n);
      store_normal_n(y + i, v, n);
    });
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

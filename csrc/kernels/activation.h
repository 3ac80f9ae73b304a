// Point-wise activations, plain and gated (SwiGLU, GeGLU; Shazeer 2020).
//
// Numerics  computed in fp32 from the stored value, rounded once on store.  Where that rounds to 16
//           bits, what rises from 0 to 1 is 1e-5 from exact, of GELU 7e-5 (the functions
//           for_16_bits), and subnormal bf16 numbers are zeros where hardware makes them so.
// Threads   none: rows [slice.begin, slice.end).
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/math.h"

namespace CPU_BACKEND_NAMESPACE {

// T: what the result is rounded to.
template <Activation kKind, class T = float>
CPU_BACKEND_INLINE Vec activate(Vec x) {
  if constexpr (kKind == Activation::kSilu && sizeof(T) == 2) {
    return x * sigmoid_for_16_bits(x);
  } else if constexpr (kKind == Activation::kSilu) {
    return x / (1.0f + exp(-x));
  } else if constexpr (kKind == Activation::kGelu && sizeof(T) == 2) {
    const Vec a = min(abs(x), broadcast(13.5f));
    return max(broadcast(0.0f), x) - a * normal_tail_for_16_bits(a);  // in this order NaN stays
  } else if constexpr (kKind == Activation::kGelu) {
    return 0.5f * x * erfc(x * -0.707106781186547524f);
  } else if constexpr (kKind == Activation::kGeluTanh) {
    // (1 + tanh(y)) / 2 is the sigmoid of 2 y.
    const Vec twice = 1.59576912160573071f * (x + 0.044715f * x * x * x);
    return x * (sizeof(T) == 2 ? sigmoid_for_16_bits(twice) : sigmoid(twice));
  } else if constexpr (kKind == Activation::kSigmoid) {
    return sigmoid(x);
  } else if constexpr (kKind == Activation::kRelu2) {
    const Vec positive = max(broadcast(0.0f), x);  // in this order NaN stays
    return positive * positive;
  } else if constexpr (sizeof(T) == 2) {
    return x * sigmoid_for_16_bits(1.702f * x);
  } else {
    return x * sigmoid(1.702f * x);
  }
}

template <Activation kKind, class T>
CPU_BACKEND_INLINE Vec activate_and_multiply(Vec gate, Vec up) {
  if constexpr (kKind == Activation::kSwigluOai) {
    const Vec limit = broadcast(7.0f);
    return activate<Activation::kGeluQuick, T>(min(gate, limit)) *
           (max(min(up, limit), -limit) + 1.0f);
  } else if constexpr (kKind == Activation::kSwigluStep) {
    const Vec limit = broadcast(7.0f);
    return min(activate<Activation::kSilu, T>(gate), limit) * max(min(up, limit), -limit);
  } else {
    return activate<kKind, T>(gate) * up;
  }
}

template <class T, Activation kKind>
void activation_rows(const ActivationArgs& args, Slice rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    const T* gate = args.gate_second ? x + args.size : x;
    const T* up = args.gate_second ? x : x + args.size;
    T* y = static_cast<T*>(args.y) + r * args.y_stride;
    for_each_vector(args.size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const Vec g = load_n(gate + i, n);
      const Vec result = args.gated ? activate_and_multiply<kKind, T>(g, load_n(up + i, n))
                                    : activate<kKind, T>(g);
      store_normal_n(y + i, result, n);
    });
  }
}

template <class T>
void activation(const ActivationArgs& args, Slice rows) {
  switch (args.kind) {
    case Activation::kSilu:
      return activation_rows<T, Activation::kSilu>(args, rows);
    case Activation::kGelu:
      return activation_rows<T, Activation::kGelu>(args, rows);
    case Activation::kGeluTanh:
      return activation_rows<T, Activation::kGeluTanh>(args, rows);
    case Activation::kGeluQuick:
      return activation_rows<T, Activation::kGeluQuick>(args, rows);
    case Activation::kSigmoid:
      return activation_rows<T, Activation::kSigmoid>(args, rows);
    case Activation::kRelu2:
      return activation_rows<T, Activation::kRelu2>(args, rows);
    case Activation::kSwigluOai:
      return activation_rows<T, Activation::kSwigluOai>(args, rows);
    case Activation::kSwigluStep:
      return activation_rows<T, Activation::kSwigluStep>(args, rows);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

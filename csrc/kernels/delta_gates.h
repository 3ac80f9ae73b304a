// The gates of a gated delta net (Yang, Kautz and Hatamizadeh 2024) per token and head:
//   log_decay = -exp(a_log) * softplus(a + bias)      beta = sigmoid(b)
//
// Shapes    a, b: tokens x heads, rows may be strided; log_decay and beta: dense, fp32.
// Numerics  all in fp32, nothing is rounded to the activations' type.
// Threads   none: tokens [slice.begin, slice.end) only.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/math.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
void delta_gates(const DeltaGateArgs& args, Slice tokens) {
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const T* a = static_cast<const T*>(args.a) + t * args.a_stride;
    const T* b = static_cast<const T*>(args.b) + t * args.b_stride;
    for_each_vector(args.heads, [&](int64_t h, int n) CPU_BACKEND_LAMBDA {
      const Vec bias = args.bias_is_float ? load_n(static_cast<const float*>(args.bias) + h, n)
                                          : load_n(static_cast<const T*>(args.bias) + h, n);
      const Vec rate = exp(load_n(args.a_log + h, n));
      store_n(args.log_decay + t * args.heads + h, -rate * softplus(load_n(a + h, n) + bias), n);
      store_n(args.beta + t * args.heads + h, sigmoid(load_n(b + h, n)), n);
    });
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

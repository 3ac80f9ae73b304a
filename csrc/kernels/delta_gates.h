// The gates of a gated delta net (Yang, Kautz and Hatamizadeh 2024) per token and head:
//   log_decay = -exp(a_log) * softplus(a + bias)      beta = range * sigmoid(b)
// In Kimi's delta attention (Kimi Team 2025, "Kimi Linear") each channel of a head's keys has an a,
// a bias and a decay of its own.
//
// Shapes    see DeltaGateArgs; rows of a and b may be strided, log_decay and beta are dense, fp32.
// Numerics  all in fp32, nothing is rounded to the activations' type.
// Threads   none: tokens [slice.begin, slice.end) only.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/math.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
void delta_gates(const DeltaGateArgs& args, Slice tokens) {
  const auto decay = [&](const T* a, int64_t i, int n, Vec log_rate) CPU_BACKEND_LAMBDA {
    const Vec bias = args.bias_is_float ? load_n(static_cast<const float*>(args.bias) + i, n)
                                        : load_n(static_cast<const T*>(args.bias) + i, n);
    return -exp(log_rate) * softplus(load_n(a + i, n) + bias);
  };
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const T* a = static_cast<const T*>(args.a) + t * args.a_stride;
    const T* b = static_cast<const T*>(args.b) + t * args.b_stride;
    float* log_decay = args.log_decay + t * args.heads * args.decays;
    if (args.decays == 1) {
      for_each_vector(args.heads, [&](int64_t h, int n) CPU_BACKEND_LAMBDA {
        store_n(log_decay + h, decay(a, h, n, load_n(args.a_log + h, n)), n);
      });
    } else {
      for (int64_t h = 0; h < args.heads; ++h)
        for_each_vector(args.decays, [&](int64_t c, int n) CPU_BACKEND_LAMBDA {
          const int64_t i = h * args.decays + c;
          store_n(log_decay + i, decay(a, i, n, broadcast(args.a_log[h])), n);
        });
    }
    for_each_vector(args.heads, [&](int64_t h, int n) CPU_BACKEND_LAMBDA {
      store_n(args.beta + t * args.heads + h, sigmoid(load_n(b + h, n)) * args.beta_range, n);
    });
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

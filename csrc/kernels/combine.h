// y[t] = sum over i of weights[t][i] * x[places[t][i]]: the outputs of a token's experts, added up.
//
// Numerics  fp32 in the order of i, rounded once, on store.  A negative place adds nothing.
// Threads   none: tokens [slice.begin, slice.end).
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
void combine(const CombineArgs& args, Slice tokens) {
  const T* x = static_cast<const T*>(args.x);
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int32_t* places = args.places + t * args.count;
    const float* weights = args.weights + t * args.count;
    T* y = static_cast<T*>(args.y) + t * args.y_stride;
    for_each_vector(args.size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec sum{};
      for (int64_t c = 0; c < args.count; ++c)
        if (places[c] >= 0) sum = load_n(x + places[c] * args.x_stride + i, n) * weights[c] + sum;
      store_n(y + i, sum, n);
    });
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

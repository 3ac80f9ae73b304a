// y[i] = x0[i] + x1[i] + x2[i] + ...: what the ranks of a group have computed, added up.
//
// Shapes    every buffer is dense; y may be one of the sources.
// Numerics  sums run in fp32 in the order of the sources and are rounded once, on store; so the
//           result depends neither on who adds nor on how the elements are cut into slices.
// Threads   none: elements [slice.begin, slice.end) only.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
void sum_buffers(const SumArgs& args, Slice elements) {
  const int64_t first = elements.begin;
  T* y = static_cast<T*>(args.y) + first;
  for_each_vector(elements.end - first, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    Vec sum = load_n(static_cast<const T*>(args.sources[0]) + first + i, n);
    for (int s = 1; s < args.count; ++s)
      sum = sum + load_n(static_cast<const T*>(args.sources[s]) + first + i, n);
    store_n(y + i, sum, n);
  });
}

}  // namespace CPU_BACKEND_NAMESPACE

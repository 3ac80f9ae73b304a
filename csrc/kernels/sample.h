// Row-wise token choice over logits: the largest value, or the largest after Gumbel noise.
//
// argmax_row          index of the maximum; the lowest index wins ties, NaN never wins.
// gumbel_argmax_row   argmax(x + g) with g = -log(-log(u)): one draw from softmax(x) (Gumbel-max).
//                     u comes from a counter-based hash of (seed, column), so that a request's
//                     choice depends on nothing but its logits and its seed.
#pragma once

#include "core/view.h"
#include "isa/math.h"

namespace CPU_BACKEND_NAMESPACE {

// Keeps, per lane, the best value seen and where; `finish` picks the lowest index among equals.
struct Best {
  Vec value = broadcast(-__builtin_inff());
  VecI index = broadcast(int32_t{0x7fffffff});

  CPU_BACKEND_INLINE void add(Vec v, VecI at) {
    const VecI better = v > value;
    value = select(better, v, value);
    index = better ? at : index;
  }
  CPU_BACKEND_INLINE int64_t finish() const {
    float best = -__builtin_inff();
    int32_t at = 0x7fffffff;
    for (int i = 0; i < kLanes; ++i) {
      if (value[i] > best || (value[i] == best && index[i] < at)) {
        best = value[i];
        at = index[i];
      }
    }
    return at == 0x7fffffff ? 0 : at;  // nothing above -inf: the first column
  }
};

// Uniform in (0, 1) from two rounds of the murmur3 finalizer over (seed, column).
CPU_BACKEND_INLINE Vec uniform(VecI column, uint64_t seed) {
  VecU h = (VecU)column * 0x9e3779b1u + static_cast<uint32_t>(seed);
  for (int round = 0; round < 2; ++round) {
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    h = (h ^ (h >> 16)) + static_cast<uint32_t>(seed >> 32);
  }
  // 23 random bits, centred in their interval: never 0, never 1.
  return (from_bits((h >> 9) | 0x3f800000u) - 1.0f) + 0x1p-24f;
}

template <class T, bool kNoise>
int64_t choose_row(const T* x, int64_t size, uint64_t seed) {
  Best best;
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    const VecI at = lane_index(static_cast<int32_t>(i));
    Vec v = load_n(x + i, n);
    if (kNoise) v = v - log(max(-log(uniform(at, seed)), broadcast(1e-30f)));
    if (n < kLanes) v = select(lane_index(0) < n, v, broadcast(-__builtin_inff()));
    best.add(v, at);
  });
  return best.finish();
}

template <class T>
int64_t argmax_row(const T* x, int64_t size) {
  return choose_row<T, false>(x, size, 0);
}
template <class T>
int64_t gumbel_argmax_row(const T* x, int64_t size, uint64_t seed) {
  return choose_row<T, true>(x, size, seed);
}

}  // namespace CPU_BACKEND_NAMESPACE

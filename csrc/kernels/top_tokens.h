// Top-k and top-p (nucleus sampling, Holtzman et al. 2020) on one row of logits, without a sort.
//
// keep_top   logits outside the choice become -inf, in place:
//            k > 0   kept are values >= the k-th largest
//            p < 1   then kept are values that have less than p of the softmax mass above them
//            so ties with the last value kept are kept too, and the largest value always is.
// Method     both are one question: the largest value t with weight(x >= t) >= target, weights
//            being 1 or exp(x - max).  A histogram over the upper bits of the values finds the bin
//            of t, two more find t itself.  For top-p all values whose weight is below
//            (1 - p) * total / size are left out first: together they cannot weigh 1 - p.
// Scratch    2 * size floats.
#pragma once

#include "core/view.h"
#include "isa/math.h"

namespace CPU_BACKEND_NAMESPACE {

// Unsigned numbers in the order of the floats.
CPU_BACKEND_INLINE uint32_t order_key(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
CPU_BACKEND_INLINE float from_order_key(uint32_t key) {
  const uint32_t bits = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// The largest t with sum of weight(i) over x[i] >= t at least `target` (> 0), or a value below all.
template <class Weight>
float weighted_threshold(const float* x, int64_t size, double target, Weight weight) {
  constexpr int kDigits[] = {11, 11, 10};
  uint32_t prefix = 0;
  double above = 0;
  int shift = 32;
  for (const int digits : kDigits) {
    double bins[1 << 11] = {};
    const int next = shift - digits;
    const uint32_t mask = (1u << digits) - 1;
    for (int64_t i = 0; i < size; ++i) {
      const uint32_t key = order_key(x[i]);
      if (shift == 32 || key >> shift == prefix) bins[(key >> next) & mask] += weight(i);
    }
    uint32_t bin = mask;
    for (; bin > 0 && above + bins[bin] < target; --bin) above += bins[bin];
    prefix = shift == 32 ? bin : (prefix << digits | bin);
    shift = next;
  }
  return from_order_key(prefix);
}

CPU_BACKEND_INLINE void drop_below(float* x, int64_t size, float threshold) {
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    const Vec v = load_n(x + i, n);
    store_n(x + i, select(v < threshold, broadcast(-__builtin_inff()), v), n);
  });
}

static inline void keep_top_k(float* x, int64_t size, int64_t k) {
  if (k <= 0 || k >= size) return;
  drop_below(x, size,
             weighted_threshold(x, size, static_cast<double>(k), [](int64_t) { return 1.0; }));
}

static inline void keep_top_p(float* x, int64_t size, float p, float* scratch) {
  if (!(p < 1.0f) || size == 0) return;
  Vec largest = broadcast(-__builtin_inff());
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    Vec v = load_n(x + i, n);
    if (n < kLanes) v = select(lane_index(0) < n, v, broadcast(-__builtin_inff()));
    largest = max(v, largest);
  });
  const float top = max_lanes(largest);
  if (!(top - top == 0.0f)) return;  // nothing finite to choose from
  float* weights = scratch;
  double total = 0;
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    Vec e = exp(load_n(x + i, n) - top);
    if (n < kLanes) e = select(lane_index(0) < n, e, Vec{});
    store_n(weights + i, e, n);
    total += sum_lanes(e);
  });
  const float least = static_cast<float>(0.5 * (1.0 - p) * total / static_cast<double>(size));
  float* values = scratch + size;
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (weights[i] < least) continue;
    values[count] = x[i];
    weights[count++] = weights[i];
  }
  const double target = p > 0.0f ? p * total : 1e-30;
  drop_below(x, size, weighted_threshold(values, count, target, [weights](int64_t i) {
               return static_cast<double>(weights[i]);
             }));
}

// p >= 1 and k <= 0 choose everything.
static inline void keep_top(float* x, int64_t size, int64_t k, float p, float* scratch) {
  keep_top_k(x, size, k);
  keep_top_p(x, size, p, scratch);
}

}  // namespace CPU_BACKEND_NAMESPACE

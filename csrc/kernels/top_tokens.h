// Top-k, top-p (nucleus sampling, Holtzman et al. 2020) and min-p (Nguyen et al. 2024) on one row
// of logits, without a sort.
//
// cutoff     The least logit that may be drawn.  In this order, as the host filters:
//            min_p > 0   values with exp(x - max) >= min_p
//            k > 0       of them those >= the k-th largest
//            p < 1       of them those with less than p of the softmax mass above them
//            so ties with the last value kept are kept too, and the largest value always is; -inf,
//            which leaves every value, where no value is finite or nothing is to be left out.
// keep_top   logits below the cutoff become -inf, in place.
// Method     top-k and top-p are one question: the largest t with weight(x >= t) >= target, weights
//            being 1 or exp(x - max).  A histogram over the upper bits of the values finds the bin
//            of t, two more find t itself.  Only candidates enter it: the k-th largest of the
//            maxima of groups is no more than the k-th largest value, and values whose weight is
//            below (1 - p) * total / size cannot together weigh 1 - p.  Groups without a candidate
//            are passed over.
// Scratch    top_tokens_scratch(size) floats.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/math.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr float kNone = -__builtin_inff();

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

// The largest t with sum of weight(i) over x[i] >= t at least `target` (> 0), or -inf.
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
  return prefix < order_key(kNone) ? kNone : from_order_key(prefix);
}

CPU_BACKEND_INLINE Vec load_or_none(const float* x, int n) {
  const Vec v = load_n(x, n);
  return n < kLanes ? select(lane_index(0) < n, v, broadcast(kNone)) : v;
}

// The lanes' maxima of every kGroupVectors vectors of a row.
struct GroupMaxima {
  static constexpr int64_t kGroupVectors = 16;
  static constexpr int64_t kGroup = kGroupVectors * kLanes;

  const float* x;
  int64_t size;
  float* maxima;
  float top;

  // Lanes in `maxima`.
  static int64_t count(int64_t size) { return (size + kGroup - 1) / kGroup * kLanes; }

  GroupMaxima(const float* row, int64_t row_size, float* storage)
      : x(row), size(row_size), maxima(storage) {
    Vec largest = broadcast(kNone);
    float* out = maxima;
    for (int64_t begin = 0; begin < size; begin += kGroup, out += kLanes) {
      const int64_t left = size - begin;
      Vec group = broadcast(kNone);
      for_each_vector(left < kGroup ? left : kGroup, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
        group = max(load_or_none(x + begin + i, n), group);  // a NaN is never the larger one
      });
      store(out, group);
      largest = max(group, largest);
    }
    top = max_lanes(largest);
  }

  // f(group, its maximum) over the groups that have a value >= floor.
  template <class F>
  CPU_BACKEND_INLINE void for_each_group_from(float floor, F f) const {
    const float* group = maxima;
    for (int64_t begin = 0; begin < size; begin += kGroup, group += kLanes) {
      const float largest = max_lanes(load(group));
      if (largest >= floor) f(Slice{begin, begin + kGroup < size ? begin + kGroup : size}, largest);
    }
  }
  // f(offset, n) over their vectors.
  template <class F>
  CPU_BACKEND_INLINE void for_each_vector_from(float floor, F f) const {
    for_each_group_from(floor, [&](Slice group, float) CPU_BACKEND_LAMBDA {
      for_each_vector(group.end - group.begin,
                      [&](int64_t i, int n) CPU_BACKEND_LAMBDA { f(group.begin + i, n); });
    });
  }
};

inline int64_t top_tokens_scratch(int64_t size) { return GroupMaxima::count(size) + 2 * size; }

// scratch: 2 * size floats.
static inline float cutoff(const GroupMaxima& row, const TokenFilter& filter, float* scratch) {
  const float top = row.top;
  const bool some = filter.k > 0 && filter.k < row.size;
  const bool nucleus = filter.p < 1.0f;
  if (!(top - top == 0.0f)) return kNone;  // nothing finite to choose from
  float floor = filter.min_p > 0.0f ? top + log(broadcast(filter.min_p))[0] : kNone;
  if (!some && !nucleus) return floor;
  const auto raise_to = [&](float least) { floor = floor > least ? floor : least; };

  const auto maxima = GroupMaxima::count(row.size);
  double total = 0;
  if (some) {
    if (filter.k <= maxima)
      raise_to(weighted_threshold(row.maxima, maxima, static_cast<double>(filter.k),
                                  [](int64_t) { return 1.0; }));
  } else {
    row.for_each_vector_from(floor, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const Vec v = load_or_none(row.x + i, n);
      total += sum_lanes(select(v >= floor, exp_nonpositive(v - top), Vec{}));
    });
    const auto least = static_cast<float>(0.5 * (1.0 - filter.p) * total / row.size);
    if (least > 0.0f) raise_to(top + log(broadcast(least))[0]);
  }

  float* values = scratch;
  int64_t count = 0;
  row.for_each_vector_from(floor, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    for (int lane = 0; lane < n; ++lane) {
      values[count] = row.x[i + lane];
      count += values[count] >= floor;
    }
  });
  if (some) {
    raise_to(weighted_threshold(values, count, static_cast<double>(filter.k),
                                [](int64_t) { return 1.0; }));
    if (!nucleus) return floor;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      values[kept] = values[i];
      kept += values[kept] >= floor;
    }
    count = kept;
  }
  float* weights = scratch + row.size;
  double mass = 0;
  for_each_vector(count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    const Vec weight = exp_nonpositive(load_or_none(values + i, n) - top);
    store_n(weights + i, weight, n);
    mass += sum_lanes(weight);
  });
  if (some) total = mass;
  const double target = filter.p > 0.0f ? filter.p * total : 1e-30;
  raise_to(weighted_threshold(values, count, target,
                              [weights](int64_t i) { return static_cast<double>(weights[i]); }));
  return floor;
}

static inline void keep_top(float* x, int64_t size, const TokenFilter& filter, float* scratch) {
  const GroupMaxima row(x, size, scratch);
  const float least = cutoff(row, filter, scratch + GroupMaxima::count(size));
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    const Vec v = load_n(x + i, n);
    store_n(x + i, select(v < least, broadcast(kNone), v), n);
  });
}

}  // namespace CPU_BACKEND_NAMESPACE

// Row-wise token choice over logits: the largest value, or the largest after Gumbel noise.
//
// argmax_row          index of the maximum; the lowest index wins ties, NaN never wins.
// gumbel_argmax_row   argmax(x + g) with g = -log(-log(u)): one draw from softmax(x) (Gumbel-max).
//                     u comes from a counter-based hash of (seed, column), so that a request's
//                     choice depends on nothing but its logits and its seed.
// sample_row          divides the row by the temperature, in place, and draws as above from what
//                     top-k, top-p and min-p leave of it.
#pragma once

#include "kernels/top_tokens.h"

namespace CPU_BACKEND_NAMESPACE {

// Keeps, per lane, the best value seen and where; `finish` picks the lowest index among equals.
struct Best {
  Vec value = broadcast(kNone);
  VecI index = broadcast(int32_t{0x7fffffff});

  CPU_BACKEND_INLINE void add(Vec v, VecI at) {
    const VecI better = v > value;
    value = select(better, v, value);
    index = better ? at : index;
  }
  CPU_BACKEND_INLINE int64_t finish() const {
    float best = kNone;
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

CPU_BACKEND_INLINE Vec add_gumbel_noise(Vec x, VecI column, uint64_t seed) {
  return x - log(max(-log(uniform(column, seed)), broadcast(1e-30f)));
}

template <class T, bool kNoise>
int64_t choose_row(const T* x, int64_t size, uint64_t seed) {
  Best best;
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    const VecI at = lane_index(static_cast<int32_t>(i));
    Vec v = load_n(x + i, n);
    if (kNoise) v = add_gumbel_noise(v, at, seed);
    if (n < kLanes) v = select(lane_index(0) < n, v, broadcast(kNone));
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

// Whether noise may lift a value of the group, at most `lead` above the best so far, over it.  That
// takes -log(-log(u)) > -lead, and the u alone are cheap.  What rounding decides may win.
CPU_BACKEND_INLINE bool may_win(Slice group, float lead, uint64_t seed) {
  const Vec needed = exp(-1.0001f * exp(broadcast(lead))) - 1e-6f;
  if (!(needed[0] > 0.0f)) return true;
  Vec largest{};
  for (int64_t i = group.begin; i < group.end; i += kLanes)
    largest = max(largest, uniform(lane_index(static_cast<int32_t>(i)), seed));
  return max_lanes(largest) >= needed[0];
}

static inline int64_t sample_row(float* x, int64_t size, const SampleArgs& args, float* scratch) {
  if (args.temperature < 1e-5f) return argmax_row(x, size);
  if (args.temperature != 1.0f) {
    for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store_n(x + i, load_n(x + i, n) / args.temperature, n);
    });
  }
  const GroupMaxima row(x, size, scratch);
  const float least = cutoff(row, args.filter, scratch + GroupMaxima::count(size));
  Best best;
  float leader = kNone;
  row.for_each_group_from(least, [&](Slice group, float top) CPU_BACKEND_LAMBDA {
    if (!may_win(group, top - leader, args.seed)) return;
    for_each_vector(group.end - group.begin, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const VecI at = lane_index(static_cast<int32_t>(group.begin + i));
      const Vec v = load_or_none(x + group.begin + i, n);
      best.add(select(v >= least, add_gumbel_noise(v, at, args.seed), broadcast(kNone)), at);
    });
    leader = max_lanes(best.value);
  });
  return best.finish();
}

}  // namespace CPU_BACKEND_NAMESPACE

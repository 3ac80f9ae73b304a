// The recurrence of selective state-space models: Mamba (Gu and Dao 2023) and Mamba-2 (Dao and Gu
// 2024).  For each token of a sequence, head, channel p and state n
//   step = dt[p] + dt_bias[p], through softplus if asked for
//   state[p][n] = exp(step * a[p][n]) * state[p][n] + step * x[p] * b[n]
//   y[p] = sum over n of state[p][n] * c[n] + d[p] * x[p], times silu(z[p]) if there is a gate.
//
// Shapes    x, z, dt, out [tokens, heads, channels]; b, c [tokens, groups, states], a group for as
//           many heads in a row; a [heads, channels, states]; dt_bias, d [heads, channels]; state
//           [slots, heads, channels, states].  Any strides, state dense in its last dimension; out
//           may be z or dt.
// Numerics  fp32; the state is rounded to its own type after every token, the result once.  Tokens
//           follow each other in order, in one step or in several: bits do not depend on where a
//           step begins, nor on the batch.  Mamba-2 has one dt and one a per head (shared_steps).
// Threads   none: one StateScanItem of at most kScanChannels channels; scratch:
//           state_scan_scratch_floats(states).
#pragma once

#include "core/slice.h"
#include "isa/math.h"
#include "kernels/sequences.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t kScanChannels = 64;

inline int64_t state_scan_scratch_floats(int64_t states) {
  return 3 * kScanChannels + 2 * round_up(states, kLanes);
}

// n numbers of the channels from `channel` on.
CPU_BACKEND_INLINE Vec load_numbers(const Numbers& of, int64_t token, int64_t head, int64_t channel,
                                    int n) {
  const int64_t at = token * of.token_stride + head * of.head_stride + channel * of.channel_stride;
  switch (of.type) {
    case DType::kBFloat16:
      return load_strided(static_cast<const bf16_t*>(of.data) + at, of.channel_stride, n);
    case DType::kFloat16:
      return load_strided(static_cast<const fp16_t*>(of.data) + at, of.channel_stride, n);
    case DType::kFloat32:
      break;
  }
  return load_strided(static_cast<const float*>(of.data) + at, of.channel_stride, n);
}

// The state that the sequence begins with, where the scan will update it.
template <class S>
CPU_BACKEND_INLINE void begin_state(const StateScanArgs& args, const Sequence& s, S* target,
                                    const S* source, int64_t channels) {
  if (s.continued && source == target) return;
  for (int64_t p = 0; p < channels;
       ++p, target += args.state_channel_stride, source += args.state_channel_stride)
    for_each_vector(args.states, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store_n(target + i, s.continued ? load_n(source + i, n) : Vec{}, n);
    });
}

// One channel's state a token further; what the state gives to y.
template <class S>
CPU_BACKEND_INLINE float advance(S* state, const float* a, int64_t a_stride, bool shared, Vec decay,
                                 float step, float x, const float* b, const float* c,
                                 int64_t states) {
  Vec sum{};
  for_each_vector(states, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    if (!shared) decay = exp(step * load_strided(a + i * a_stride, a_stride, n));
    const Vec input = step * x * load(b + i);
    const Vec next = load_n(state + i, n) * decay + input;
    store_n(state + i, next, n);
    sum = next * load(c + i) + sum;
  });
  return sum_lanes(sum);
}

template <class T, class S>
void scan_sequence(const StateScanArgs& args, const Sequence& s, int64_t target_slot,
                   const StateScanItem& item, float* scratch) {
  const int64_t h = item.head, first = item.channels.begin;
  const int64_t count = item.channels.end - first;
  const int64_t group = h / (args.heads / args.groups);
  float *const steps = scratch, *const inputs = steps + kScanChannels;
  float *const results = inputs + kScanChannels, *const b = results + kScanChannels;
  float* const c = b + round_up(args.states, kLanes);
  const auto part = [&](int64_t slot) {
    return static_cast<S*>(args.state) + slot * args.state_slot_stride +
           h * args.state_head_stride + first * args.state_channel_stride;
  };
  S* const state = part(target_slot);
  begin_state(args, s, state, static_cast<const S*>(part(s.slot)), count);
  const float* a = args.a + h * args.a_head_stride + first * args.a_channel_stride;
  for (int64_t t = s.begin; t < s.end; ++t) {
    for_each_vector(args.shared_steps ? 1 : count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec step = load_numbers(args.dt, t, h, first + i, n);
      if (args.dt_bias.data) step = step + load_numbers(args.dt_bias, 0, h, first + i, n);
      store(steps + i, args.softplus ? softplus(step) : step);
    });
    for_each_vector(count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store(inputs + i, load_numbers(args.x, t, h, first + i, n));
    });
    const T* b_row =
        static_cast<const T*>(args.b) + t * args.b_token_stride + group * args.b_group_stride;
    const T* c_row =
        static_cast<const T*>(args.c) + t * args.c_token_stride + group * args.c_group_stride;
    for_each_vector(args.states, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store(b + i, load_strided(b_row + i * args.b_state_stride, args.b_state_stride, n));
      store(c + i, load_strided(c_row + i * args.c_state_stride, args.c_state_stride, n));
    });
    const Vec decay = args.shared_steps ? exp(broadcast(steps[0] * a[0])) : Vec{};
    for (int64_t p = 0; p < count; ++p)
      results[p] = advance(state + p * args.state_channel_stride, a + p * args.a_channel_stride,
                           args.a_state_stride, args.shared_steps, decay,
                           steps[args.shared_steps ? 0 : p], inputs[p], b, c, args.states);
    T* out = static_cast<T*>(args.out) + t * args.out_token_stride + h * args.out_head_stride +
             first * args.out_channel_stride;
    for_each_vector(count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec y = load(results + i);
      if (args.d.data) y = load_numbers(args.d, 0, h, first + i, n) * load(inputs + i) + y;
      if (args.z.data) {
        const Vec z = load_numbers(args.z, t, h, first + i, n);
        y = y * (z / (1.0f + exp(-z)));
      }
      store_strided(out + i * args.out_channel_stride, args.out_channel_stride, y, n);
    });
  }
}

template <class T, class S>
void state_scan(const StateScanArgs& args, const StateScanItem& item, float* scratch) {
  Sequence s{sequences_end(args.sequences), args.tokens, 0, true, false};
  if (item.sequence < args.sequences.count) s = sequence_of(args.sequences, item.sequence);
  if (s.is_null) {
    T* out = static_cast<T*>(args.out) + item.head * args.out_head_stride;
    for (int64_t t = s.begin; t < s.end; ++t)
      for (int64_t p = item.channels.begin; p < item.channels.end; ++p)
        out[t * args.out_token_stride + p * args.out_channel_stride] = round_to<T>(0.0f);
  } else if (s.end > s.begin) {
    const int64_t target = args.targets ? args.targets[item.sequence * args.target_stride] : s.slot;
    scan_sequence<T, S>(args, s, target, item, scratch);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

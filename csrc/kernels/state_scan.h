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
// Blocking  kScanTokens tokens at a time pass over one channel's state, of which kScanVectors
//           vectors stay in registers; a token's sum over the states waits in scratch for the next
//           ones.  A vector of states costs three operations a token, and no load or store of its
//           own.
// Threads   none: one StateScanItem of at most kScanChannels channels; scratch:
//           state_scan_scratch_floats(states).
#pragma once

#include "core/slice.h"
#include "isa/math.h"
#include "kernels/sequences.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t kScanChannels = 64;
constexpr int64_t kScanTokens = 16;
constexpr int kScanVectors = 4;

// What kScanTokens tokens are to a part of a head: per token a row of each.
struct ScanTile {
  static constexpr int64_t kRows = 3 * kScanChannels + kLanes + 1;  // but for b and c

  ScanTile(float* scratch, int64_t states)
      : states(round_up(states, kLanes)),
        steps(scratch),
        inputs(steps + kScanTokens * kScanChannels),
        results(inputs + kScanTokens * kScanChannels),
        sums(results + kScanTokens * kScanChannels),
        b(sums + kScanTokens * kLanes),
        c(b + kScanTokens * this->states),
        decays(c + kScanTokens * this->states) {}

  int64_t states;         // padded with zeros
  float *steps, *inputs;  // [channels]; of shared steps the first only
  float* results;         // [channels]
  float* sums;            // [kLanes], of one channel
  float *b, *c;           // [states]
  float* decays;          // of shared steps
};

inline int64_t state_scan_scratch_floats(int64_t states) {
  return kScanTokens * (ScanTile::kRows + 2 * round_up(states, kLanes));
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

// kVectors vectors of channel p's state, from state n on, through the tile's tokens; of one vector
// `lanes` lanes.  a: what they decay by, if steps are not shared.
template <int kVectors, bool kShared, class S>
CPU_BACKEND_INLINE void advance(S* state, const float* a, int64_t a_stride, const ScanTile& tile,
                                int64_t tokens, int64_t p, int64_t n, int lanes) {
  Vec now[kVectors], rate[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    const int64_t at = n + v * kLanes;
    now[v] = load_n(state + at, lanes);
    if (!kShared) rate[v] = load_strided(a + at * a_stride, a_stride, lanes);
  }
  for (int64_t i = 0; i < tokens; ++i) {
    const float step = tile.steps[i * kScanChannels + (kShared ? 0 : p)];
    const float input = step * tile.inputs[i * kScanChannels + p];
    const float *b = tile.b + i * tile.states + n, *c = tile.c + i * tile.states + n;
    Vec sum = n == 0 ? Vec{} : load(tile.sums + i * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      const Vec decay = kShared ? broadcast(tile.decays[i]) : exp(step * rate[v]);
      const Vec next = now[v] * decay + input * load(b + v * kLanes);
      sum = next * load(c + v * kLanes) + sum;
      now[v] = kept<S>(next);
    }
    store(tile.sums + i * kLanes, sum);
  }
  for (int v = 0; v < kVectors; ++v) store_n(state + n + v * kLanes, now[v], lanes);
}

template <bool kShared, class S>
CPU_BACKEND_INLINE void scan_channel(const StateScanArgs& args, S* state, const float* a,
                                     const ScanTile& tile, int64_t tokens, int64_t p) {
  constexpr int64_t kWide = kScanVectors * kLanes;
  int64_t n = 0;
  for (; n + kWide <= args.states; n += kWide)
    advance<kScanVectors, kShared>(state, a, args.a_state_stride, tile, tokens, p, n, kLanes);
  for (; n < args.states; n += kLanes)
    advance<1, kShared>(state, a, args.a_state_stride, tile, tokens, p, n,
                        static_cast<int>(args.states - n < kLanes ? args.states - n : kLanes));
  for (int64_t i = 0; i < tokens; ++i)
    tile.results[i * kScanChannels + p] = sum_lanes(load(tile.sums + i * kLanes));
}

// Steps, inputs, b and c of token t into the tile's row i.
template <class T>
CPU_BACKEND_INLINE void load_token(const StateScanArgs& args, const StateScanItem& item,
                                   const ScanTile& tile, int64_t i, int64_t t) {
  const int64_t h = item.head, first = item.channels.begin;
  const int64_t count = item.channels.end - first, group = h / (args.heads / args.groups);
  float* const steps = tile.steps + i * kScanChannels;
  for_each_vector(args.shared_steps ? 1 : count, [&](int64_t p, int n) CPU_BACKEND_LAMBDA {
    Vec step = load_numbers(args.dt, t, h, first + p, n);
    if (args.dt_bias.data) step = step + load_numbers(args.dt_bias, 0, h, first + p, n);
    store(steps + p, args.softplus ? softplus(step) : step);
  });
  for_each_vector(count, [&](int64_t p, int n) CPU_BACKEND_LAMBDA {
    store(tile.inputs + i * kScanChannels + p, load_numbers(args.x, t, h, first + p, n));
  });
  const T* b =
      static_cast<const T*>(args.b) + t * args.b_token_stride + group * args.b_group_stride;
  const T* c =
      static_cast<const T*>(args.c) + t * args.c_token_stride + group * args.c_group_stride;
  for_each_vector(args.states, [&](int64_t k, int n) CPU_BACKEND_LAMBDA {
    store(tile.b + i * tile.states + k,
          load_strided(b + k * args.b_state_stride, args.b_state_stride, n));
    store(tile.c + i * tile.states + k,
          load_strided(c + k * args.c_state_stride, args.c_state_stride, n));
  });
}

// The tile's row i, through what comes after the recurrence, as the results of token t.
template <class T>
CPU_BACKEND_INLINE void store_token(const StateScanArgs& args, const StateScanItem& item,
                                    const ScanTile& tile, int64_t i, int64_t t) {
  const int64_t h = item.head, first = item.channels.begin;
  T* const out = static_cast<T*>(args.out) + t * args.out_token_stride + h * args.out_head_stride +
                 first * args.out_channel_stride;
  for_each_vector(item.channels.end - first, [&](int64_t p, int n) CPU_BACKEND_LAMBDA {
    Vec y = load(tile.results + i * kScanChannels + p);
    if (args.d.data)
      y = load_numbers(args.d, 0, h, first + p, n) * load(tile.inputs + i * kScanChannels + p) + y;
    if (args.z.data) {
      const Vec z = load_numbers(args.z, t, h, first + p, n);
      y = y * (z / (1.0f + exp(-z)));
    }
    store_strided(out + p * args.out_channel_stride, args.out_channel_stride, y, n);
  });
}

template <class T, class S>
void scan_sequence(const StateScanArgs& args, const Sequence& s, int64_t target_slot,
                   const StateScanItem& item, float* scratch) {
  const int64_t h = item.head, first = item.channels.begin;
  const int64_t count = item.channels.end - first;
  const auto part = [&](int64_t slot) {
    return static_cast<S*>(args.state) + slot * args.state_slot_stride +
           h * args.state_head_stride + first * args.state_channel_stride;
  };
  S* const state = part(target_slot);
  begin_state(args, s, state, static_cast<const S*>(part(s.slot)), count);
  const float* a = args.a + h * args.a_head_stride + first * args.a_channel_stride;
  const ScanTile tile(scratch, args.states);
  for (int64_t t = s.begin; t < s.end; t += kScanTokens) {
    const int64_t tokens = s.end - t < kScanTokens ? s.end - t : kScanTokens;
    for (int64_t i = 0; i < tokens; ++i) {
      load_token<T>(args, item, tile, i, t + i);
      if (args.shared_steps)
        tile.decays[i] = exp(broadcast(tile.steps[i * kScanChannels] * a[0]))[0];
    }
    for (int64_t p = 0; p < count; ++p) {
      S* const channel = state + p * args.state_channel_stride;
      if (args.shared_steps) {
        scan_channel<true>(args, channel, a, tile, tokens, p);
      } else {
        scan_channel<false>(args, channel, a + p * args.a_channel_stride, tile, tokens, p);
      }
    }
    for (int64_t i = 0; i < tokens; ++i) store_token<T>(args, item, tile, i, t + i);
  }
}

template <class T, class S>
void state_scan(const StateScanArgs& args, const StateScanItem& item, float* scratch) {
  Sequence s{};
  s.begin = sequences_end(args.sequences);
  s.end = args.tokens;
  s.is_null = true;
  if (item.sequence < args.sequences.count) s = sequence_of(args.sequences, item.sequence);
  if (s.is_null) {
    T* out = static_cast<T*>(args.out) + item.head * args.out_head_stride;
    for (int64_t t = s.begin; t < s.end; ++t)
      for (int64_t p = item.channels.begin; p < item.channels.end; ++p)
        out[t * args.out_token_stride + p * args.out_channel_stride] = round_to<T>(0.0f);
    return;
  }
  const auto target = [&](int64_t t) {
    return args.targets ? args.targets[item.sequence * args.target_stride + t] : s.target(t);
  };
  Sequence part = s;  // a token at a time where each leaves a state
  part.slot = s.source(0);
  for (int64_t t = 0; s.begin + t < s.end; t = part.end - s.begin) {
    part.begin = s.begin + t;
    part.end = s.accepted ? part.begin + 1 : s.end;
    if (t > 0) part.slot = target(t - 1);
    part.continued = s.continued || t > 0;
    scan_sequence<T, S>(args, part, target(t), item, scratch);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

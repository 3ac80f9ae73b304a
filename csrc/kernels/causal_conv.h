// Causal convolution of each channel over its sequence, as state-space models and short-convolution
// models have it before their recurrence (Gu and Dao 2023):
//   y[t][c] = act(bias[c] + sum over j of weight[c][j] * x[t - (taps - 1) + j][c]).
//
// Shapes    x, y [tokens, channels], strided rows; weight [channels, taps], any strides; a
//           sequence's state, in its first slot, [channels, >= taps - 1] with any strides: its last
//           taps - 1 inputs, oldest first.  It is read where the sequence continues and always
//           written.  Where tokens may be taken back (Sequences::accepted) all of the step's own
//           follow taps - 2 from before, so that the state after token t begins at place t.
// Numerics  fp32 in the order of the taps, rounded once after the activation.  The first token
//           after a state and one in the middle of a prompt are computed alike: bits do not depend
//           on where a step begins.
// Threads   none: channels [slice.begin, slice.end), at most kConvChannels of them, of all
//           sequences; scratch: causal_conv_scratch_floats().
#pragma once

#include "core/slice.h"
#include "isa/math.h"
#include "kernels/sequences.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t kConvChannels = 64;

inline int64_t causal_conv_scratch_floats(int taps) { return (taps + 1) * kConvChannels; }

// The channels of a slice: pointers to the first of them.
template <class T>
struct ConvChannels {
  const CausalConvArgs& args;
  int64_t count;
  const T* x;
  T* y;
  T* state;
  const float* weight;  // [taps, kConvChannels], then the bias

  // Input `back` tokens before the first one of the sequence, which starts with row `begin`.
  CPU_BACKEND_INLINE Vec earlier(const Sequence& s, const T* kept, int64_t back, int64_t i,
                                 int n) const {
    if (!s.continued || !kept) return Vec{};
    const int64_t time = args.taps - 1 - back + (s.accepted ? s.accepted - 1 : 0);
    return load_strided(kept + i * args.state_channel_stride + time * args.state_time_stride,
                        args.state_channel_stride, n);
  }

  // Input of the sequence's token t, which may lie before this step.
  CPU_BACKEND_INLINE Vec input(const Sequence& s, const T* kept, int64_t t, int64_t i,
                               int n) const {
    return t < 0 ? earlier(s, kept, -t, i, n) : load_n(x + (s.begin + t) * args.x_stride + i, n);
  }
};

template <class T>
void causal_conv_sequence(const ConvChannels<T>& c, const Sequence& s) {
  const CausalConvArgs& args = c.args;
  const int history = args.taps - 1;
  const int64_t length = s.end - s.begin;
  T* kept = c.state ? c.state + s.slot * args.state_slot_stride : nullptr;
  for (int64_t t = 0; t < length; ++t) {
    T* y = c.y + (s.begin + t) * args.y_stride;
    for_each_vector(c.count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Vec sum = load(c.weight + args.taps * kConvChannels + i);
      for (int j = 0; j < args.taps; ++j)
        sum =
            c.input(s, kept, t - history + j, i, n) * load(c.weight + j * kConvChannels + i) + sum;
      if (args.silu) sum = sum / (1.0f + exp(-sum));
      store_n(y + i, sum, n);
    });
  }
  if (!kept) return;
  // Each place is filled from a later one, so in this order nothing is lost.
  const int64_t first = (s.accepted ? 1 : length) - history;
  for (int64_t t = first; t < length; ++t)
    for_each_vector(c.count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store_strided(kept + i * args.state_channel_stride + (t - first) * args.state_time_stride,
                    args.state_channel_stride, c.input(s, kept, t, i, n), n);
    });
}

template <class T>
CPU_BACKEND_INLINE void zero_rows(T* y, int64_t stride, Slice rows, int64_t size) {
  for (int64_t t = rows.begin; t < rows.end; ++t)
    for_each_vector(
        size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA { store_n(y + t * stride + i, Vec{}, n); });
}

template <class T>
void causal_conv(const CausalConvArgs& args, Slice channels, float* scratch) {
  const int64_t first = channels.begin, count = channels.end - channels.begin;
  const T* weight = static_cast<const T*>(args.weight) + first * args.weight_channel_stride;
  const T* bias = args.bias ? static_cast<const T*>(args.bias) + first : nullptr;
  for_each_vector(count, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    for (int j = 0; j < args.taps; ++j)
      store(scratch + j * kConvChannels + i,
            load_strided(weight + i * args.weight_channel_stride + j * args.weight_tap_stride,
                         args.weight_channel_stride, n));
    store(scratch + args.taps * kConvChannels + i, bias ? load_n(bias + i, n) : Vec{});
  });
  const ConvChannels<T> c{
      args,
      count,
      static_cast<const T*>(args.x) + first,
      static_cast<T*>(args.y) + first,
      args.state ? static_cast<T*>(args.state) + first * args.state_channel_stride : nullptr,
      scratch};
  for (int64_t i = 0; i < args.sequences.count; ++i) {
    const Sequence s = sequence_of(args.sequences, i);
    if (s.is_null) {
      zero_rows(c.y, args.y_stride, {s.begin, s.end}, count);
    } else if (s.end > s.begin) {
      causal_conv_sequence(c, s);
    }
  }
  zero_rows(c.y, args.y_stride, {sequences_end(args.sequences), args.tokens}, count);
}

}  // namespace CPU_BACKEND_NAMESPACE

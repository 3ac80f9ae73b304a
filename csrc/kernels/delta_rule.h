// The gated delta rule (Yang, Kautz and Hatamizadeh 2024, "Gated Delta Networks"), token by token.
// For a head with state S, key k, value v and query q of a token:
//   S <- decay * S + k (x) beta * (v - decay * S^T k)      out = S^T q
// In Kimi's delta attention (Kimi Team 2025, "Kimi Linear") the decay is a vector over the keys:
//   S <- D S + k (x) beta * (v - S^T D k)      D = diag(decay)
//
// Shapes    see DeltaRuleArgs: `heads / key_heads` heads in a row share a key head; any sizes.
//           A decode is a sequence of one token.
// Slots     see Sequences: the state is read from and left in the sequence's slot, or in one for
//           each of its tokens.
// Numerics  fp32; a state of 16 bits is rounded after every token, so no result depends on where a
//           step begins or ends.  The sums over keys have two parts, in one order.
// Blocking  a channel of the values never meets another one, so an item is kDeltaColumns channels
//           of one head of one sequence.  Of some tokens at a time it prepares keys, queries
//           and decays once, then takes them through as many channels as there are accumulators:
//           that part of the state (16 to 32 KiB) stays in L1.  The form by chunks as matrix
//           products would save arithmetic that is a twentieth of the model's, and make chunks
//           visible in results.
// Threads   none: an item only; items of one head share nothing but what they read.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/math.h"
#include "kernels/sequences.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t kDeltaTokens = 16;  // prepared at a time
constexpr int kDeltaVectors = 4;      // of channels at a time

template <int kCount>
struct VectorCount {
  static constexpr int value = kCount;
};

// Prepared tokens: [kDeltaTokens, key_dim] each, decays [kDeltaTokens, args.decays].  The state
// from before a token is summed with `recalling`, which are the keys or what decays leave of them.
struct PreparedTokens {
  float *keys, *queries, *decays, *recalling;
};

// What a token's state decays by, and how the sums over keys learn of it.
struct OneDecay {
  float decay;
  CPU_BACKEND_INLINE explicit OneDecay(const float* decays) : decay(decays[0]) {}
  CPU_BACKEND_INLINE float of(int64_t) const { return decay; }
  CPU_BACKEND_INLINE Vec recalled(Vec sums) const { return sums * decay; }

  CPU_BACKEND_INLINE static float* recalling(const DeltaRuleArgs&, const PreparedTokens& to) {
    return to.keys;
  }
  CPU_BACKEND_INLINE static void prepare(const DeltaRuleArgs& args, int64_t head, int64_t token,
                                         int64_t tokens, const PreparedTokens& to) {
    for (int64_t i = 0; i < tokens; ++i)
      to.decays[i] = args.log_decay[(token + i) * args.heads + head];
    for_each_vector(tokens, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      store_n(to.decays + i, exp(load_n(to.decays + i, n)), n);
    });
  }
};
struct DecayOfKeys {
  const float* decays;
  CPU_BACKEND_INLINE explicit DecayOfKeys(const float* of_keys) : decays(of_keys) {}
  CPU_BACKEND_INLINE float of(int64_t k) const { return decays[k]; }
  CPU_BACKEND_INLINE Vec recalled(Vec sums) const { return sums; }

  CPU_BACKEND_INLINE static float* recalling(const DeltaRuleArgs& args, const PreparedTokens& to) {
    return to.decays + kDeltaTokens * args.decays;
  }
  CPU_BACKEND_INLINE static void prepare(const DeltaRuleArgs& args, int64_t head, int64_t token,
                                         int64_t tokens, const PreparedTokens& to) {
    for (int64_t i = 0; i < tokens; ++i) {
      const float* from = args.log_decay + ((token + i) * args.heads + head) * args.key_dim;
      const int64_t row = i * args.key_dim;
      for_each_vector(args.key_dim, [&](int64_t k, int n) CPU_BACKEND_LAMBDA {
        const Vec decay = exp(load_n(from + k, n));
        store_n(to.decays + row + k, decay, n);
        store_n(to.recalling + row + k, decay * load_n(to.keys + row + k, n), n);
      });
    }
  }
};

// Room for PreparedTokens.
CPU_BACKEND_INLINE int64_t delta_scratch_floats(int64_t key_dim, int64_t decays) {
  return kDeltaTokens * (2 * key_dim + decays + (decays > 1 ? key_dim : 0)) + kLanes;
}

CPU_BACKEND_INLINE int64_t delta_blocks(int64_t value_dim) {
  return ceil_div(value_dim, kDeltaColumns);
}

// to = x * scale, divided by its length first if `normalize`.
template <class T>
CPU_BACKEND_INLINE void prepare_vector(const T* x, int64_t size, const DeltaRuleArgs& args,
                                       float scale, float* to) {
  Vec squares{};
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    const Vec v = load_n(x + i, n);
    squares = v * v + squares;
  });
  if (args.normalize) scale = scale / __builtin_sqrtf(sum_lanes(squares) + args.epsilon);
  for_each_vector(size, [&](int64_t i, int n)
                            CPU_BACKEND_LAMBDA { store_n(to + i, load_n(x + i, n) * scale, n); });
}

// row(k, part) of every key: in turns part 0 and part 1.
template <class F>
CPU_BACKEND_INLINE void for_each_key(int64_t keys, F row) {
  int64_t k = 0;
  for (; k + 2 <= keys; k += 2) {
    row(k, 0);
    row(k + 1, 1);
  }
  if (k < keys) row(k, 0);
}

// S^T recalling of kVectors full vectors of channels, or of one of `lanes` channels, in two parts.
template <int kVectors>
struct KeySums {
  Vec parts[2][kVectors] = {};

  CPU_BACKEND_INLINE void add(int part, int c, Vec state, float key) {
    parts[part][c] = state * key + parts[part][c];
  }
};

template <int kVectors, class S>
CPU_BACKEND_INLINE KeySums<kVectors> sum_keys(const DeltaRuleArgs& args, const float* key,
                                              const S* state, int lanes) {
  KeySums<kVectors> sums;
  for_each_key(args.key_dim, [&](int64_t k, int part) CPU_BACKEND_LAMBDA {
    for (int c = 0; c < kVectors; ++c)
      sums.add(part, c,
               load_n(state + k * args.value_dim + c * kLanes, kVectors > 1 ? kLanes : lanes),
               key[k]);
  });
  return sums;
}

// One token's turn, and the sums of the state that it leaves with what the next token recalls by,
// if there is one.  from and to: the state's first key row at these channels, rows `value_dim`
// apart; may be equal.
template <int kVectors, class T, class S, class Decay>
CPU_BACKEND_INLINE void delta_step(const DeltaRuleArgs& args, KeySums<kVectors>& sums,
                                   const float* key, const float* query, const float* next,
                                   Decay decay, float beta, const T* value, const S* from, S* to,
                                   T* out, int lanes) {
  const int n = kVectors > 1 ? kLanes : lanes;
  const int64_t row = args.value_dim;  // for all the compiler knows, a store could change args
  Vec delta[kVectors], results[kVectors] = {};
  for (int c = 0; c < kVectors; ++c)
    delta[c] =
        (load_n(value + c * kLanes, n) - decay.recalled(sums.parts[0][c] + sums.parts[1][c])) *
        beta;
  sums = {};
  for_each_key(args.key_dim, [&](int64_t k, int part) CPU_BACKEND_LAMBDA {
    for (int c = 0; c < kVectors; ++c) {
      const int64_t at = k * row + c * kLanes;
      const Vec state = load_n(from + at, n) * decay.of(k) + delta[c] * key[k];
      store_n(to + at, state, n);
      results[c] = state * query[k] + results[c];
      if (next) sums.add(part, c, kept<S>(state), next[k]);
    }
  });
  for (int c = 0; c < kVectors; ++c) store_n(out + c * kLanes, results[c], n);
}

template <class T, class S, class Decay>
void delta_rule(const DeltaRuleArgs& args, int64_t item, float* scratch) {
  const int64_t blocks = delta_blocks(args.value_dim);
  const int64_t first = item % blocks * kDeltaColumns;
  const int64_t last =
      first + kDeltaColumns < args.value_dim ? first + kDeltaColumns : args.value_dim;
  const int64_t head = item / blocks % args.heads;
  const int64_t number = item / blocks / args.heads;
  const int64_t key_head = head / (args.heads / args.key_heads);
  const Sequence sequence = sequence_of(args.sequences, number);
  T* out = args.out.at<T>(0, head);
  if (sequence.is_null) {
    for (int64_t t = sequence.begin; t < sequence.end; ++t)
      __builtin_memset(out + t * args.out.token_stride + first, 0, (last - first) * sizeof(T));
    return;
  }
  const auto state_of = [&](int64_t s) CPU_BACKEND_LAMBDA {
    return static_cast<S*>(args.states) + s * args.slot_stride + head * args.state_head_stride;
  };
  if (!sequence.continued && sequence.begin < sequence.end)
    for (int64_t k = 0; k < args.key_dim; ++k)
      __builtin_memset(state_of(sequence.source(0)) + k * args.value_dim + first, 0,
                       (last - first) * sizeof(S));

  PreparedTokens prepared;
  prepared.keys = scratch;
  prepared.queries = prepared.keys + kDeltaTokens * args.key_dim;
  prepared.decays = prepared.queries + kDeltaTokens * args.key_dim;
  prepared.recalling = Decay::recalling(args, prepared);
  const T* key = args.key.at<T>(0, key_head);
  const T* query = args.query.at<T>(0, key_head);
  const T* value = args.value.at<T>(0, head);
  for (int64_t t = sequence.begin; t < sequence.end; t += kDeltaTokens) {
    const int64_t tokens = sequence.end - t < kDeltaTokens ? sequence.end - t : kDeltaTokens;
    for (int64_t i = 0; i < tokens; ++i) {
      prepare_vector(key + (t + i) * args.key.token_stride, args.key_dim, args, 1.0f,
                     prepared.keys + i * args.key_dim);
      prepare_vector(query + (t + i) * args.query.token_stride, args.key_dim, args, args.scale,
                     prepared.queries + i * args.key_dim);
    }
    Decay::prepare(args, head, t, tokens, prepared);
    const auto take = [&](auto vectors, int64_t column, int lanes) CPU_BACKEND_LAMBDA {
      constexpr int kVectors = decltype(vectors)::value;
      KeySums<kVectors> sums;
      for (int64_t i = 0; i < tokens; ++i) {
        const int64_t token = t + i, step = token - sequence.begin;
        const S* from = state_of(sequence.source(step)) + column;
        S* to = state_of(sequence.target(step)) + column;
        const int64_t row = i * args.key_dim;
        const float* recalling = prepared.recalling + row;
        if (i == 0) sums = sum_keys<kVectors>(args, recalling, from, lanes);
        delta_step<kVectors>(args, sums, prepared.keys + row, prepared.queries + row,
                             i + 1 < tokens ? recalling + args.key_dim : nullptr,
                             Decay(prepared.decays + i * args.decays),
                             args.beta[token * args.heads + head],
                             value + token * args.value.token_stride + column, from, to,
                             out + token * args.out.token_stride + column, lanes);
      }
    };
    constexpr int64_t kWide = kDeltaVectors * kLanes;
    int64_t column = first;
    for (; column + kWide <= last; column += kWide)
      take(VectorCount<kDeltaVectors>{}, column, kLanes);
    for (; column < last; column += kLanes)
      take(VectorCount<1>{}, column,
           static_cast<int>(last - column < kLanes ? last - column : kLanes));
  }
}

template <class T, class S>
void delta_rule(const DeltaRuleArgs& args, int64_t item, float* scratch) {
  if (args.decays == 1) {
    delta_rule<T, S, OneDecay>(args, item, scratch);
  } else {
    delta_rule<T, S, DecayOfKeys>(args, item, scratch);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

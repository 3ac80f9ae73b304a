// The two products of low-rank adapters (Hu et al. 2021, "LoRA"), each token with the matrices of
// its own adapter, or none (Chen et al. 2023, "Punica"):
//   shrink    inner = scale * A x      expand    y += B inner
//
// Shapes    see LoraArgs: matrices are rows of `inputs` numbers.  A slice of tokens is walked in
//           runs of one adapter, whose matrix is then read once for four tokens.
// Numerics  fp32.  A number of shrink is one vector of sums, added up at the end; one of expand is
//           added up rank by rank: neither depends on the other tokens, nor on where slices begin.
//           y is rounded once.
// Threads   none: tokens and outputs of the slices only; expand's begin at a multiple of a vector.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int kLoraTile = 4;  // tokens, and outputs of shrink, at once

inline int64_t lora_expand_scratch_floats(int64_t rank) { return round_up(rank, kLanes) * kLanes; }

// f(tokens, adapter) for every run of tokens that share one, negative where they have none.
template <class F>
CPU_BACKEND_INLINE void for_each_run(const int64_t* adapters, Slice tokens, F f) {
  for (int64_t begin = tokens.begin, end; begin < tokens.end; begin = end) {
    end = begin + 1;
    while (end < tokens.end && adapters[end] == adapters[begin]) ++end;
    f(Slice{begin, end}, adapters[begin]);
  }
}

// So many tokens, known when this is compiled.
template <int N>
struct TokenTile {
  static constexpr int tokens = N;
};

// f(first, TokenTile) over all tokens, `in_tiles` of kLoraTile as far as they go, else one by one.
template <class F>
CPU_BACKEND_INLINE void for_each_tile(Slice tokens, bool in_tiles, F f) {
  int64_t i = tokens.begin;
  for (; in_tiles && i + kLoraTile <= tokens.end; i += kLoraTile) f(i, TokenTile<kLoraTile>{});
  for (; i < tokens.end; ++i) f(i, TokenTile<1>{});
}

// `outputs` of a tile at most; rows beyond the last are read again, and what they give is dropped.
// Only a token by itself may have inputs that fill no vector: of two copies of that end the
// compiler may contract different products (s390x), and bits would depend on the other tokens.
template <int Tokens, class T>
CPU_BACKEND_INLINE void shrink_tile(const LoraArgs& args, const T* weights, int64_t token,
                                    Slice outputs) {
  const int count = static_cast<int>(outputs.end - outputs.begin);
  const T* x = static_cast<const T*>(args.x) + token * args.x_stride;
  const T* a[kLoraTile];
  for (int o = 0; o < kLoraTile; ++o)
    a[o] = weights + (outputs.begin + (o < count ? o : count - 1)) * args.inputs;
  Vec sums[Tokens][kLoraTile] = {};
  const auto add = [&](auto x_of, auto a_of) CPU_BACKEND_LAMBDA {
    Vec row[kLoraTile];
    for (int o = 0; o < kLoraTile; ++o) row[o] = load(a_of(o));
    for (int t = 0; t < Tokens; ++t) {
      const Vec values = load(x_of(t));
      for (int o = 0; o < kLoraTile; ++o) sums[t][o] += values * row[o];
    }
  };
  const int64_t whole = args.inputs / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes)
    add([&](int t) { return x + t * args.x_stride + i; }, [&](int o) { return a[o] + i; });
  if constexpr (Tokens == 1)
    if (const int64_t rest = args.inputs - whole) {
      T x_rest[kLanes] = {}, a_rest[kLoraTile][kLanes] = {};
      for (int64_t i = 0; i < rest; ++i) {
        x_rest[i] = x[whole + i];
        for (int o = 0; o < kLoraTile; ++o) a_rest[o][i] = a[o][whole + i];
      }
      add([&](int) { return x_rest; }, [&](int o) { return a_rest[o]; });
    }
  float* y = static_cast<float*>(args.y) + token * args.y_stride + outputs.begin;
  for (int t = 0; t < Tokens; ++t)
    for (int o = 0; o < kLoraTile; ++o)
      if (o < count) y[t * args.y_stride + o] = sum_lanes(sums[t][o]) * args.scale;
}

// x and weights in T, y in fp32; of tokens without an adapter zeros.
template <class T>
void lora_shrink(const LoraArgs& args, Slice tokens, Slice outputs) {
  for_each_run(args.adapters, tokens, [&](Slice run, int64_t adapter) CPU_BACKEND_LAMBDA {
    if (adapter < 0) {
      for (int64_t t = run.begin; t < run.end; ++t)
        for (int64_t o = outputs.begin; o < outputs.end; ++o)
          static_cast<float*>(args.y)[t * args.y_stride + o] = 0.0f;
      return;
    }
    const T* weights = static_cast<const T*>(args.weights) + adapter * args.adapter_stride;
    for (int64_t o = outputs.begin; o < outputs.end; o += kLoraTile) {
      const Slice rows{o, o + kLoraTile < outputs.end ? o + kLoraTile : outputs.end};
      for_each_tile(run, args.inputs % kLanes == 0,
                    [&](int64_t token, auto tile) CPU_BACKEND_LAMBDA {
                      shrink_tile<decltype(tile)::tokens, T>(args, weights, token, rows);
                    });
    }
  });
}

// Weights in T, x in fp32, y in Y; tokens without an adapter are left alone.
template <class T, class Y>
void lora_expand(const LoraArgs& args, Slice tokens, Slice outputs, float* scratch) {
  const int64_t padded = round_up(args.inputs, kLanes);
  for_each_run(args.adapters, tokens, [&](Slice run, int64_t adapter) CPU_BACKEND_LAMBDA {
    if (adapter < 0) return;
    const T* weights = static_cast<const T*>(args.weights) + adapter * args.adapter_stride;
    for (int64_t first = outputs.begin; first < outputs.end; first += kLanes) {
      const int n = static_cast<int>(outputs.end - first < kLanes ? outputs.end - first : kLanes);
      // Outputs to the lanes: scratch is [padded][kLanes].
      for (int64_t i = 0; i < padded; i += kLanes) {
        VecU block[kLanes] = {};
        const int width = static_cast<int>(args.inputs - i < kLanes ? args.inputs - i : kLanes);
        for (int o = 0; o < n; ++o)
          block[o] = as_bits(load_n(weights + (first + o) * args.inputs + i, width));
        transpose(block);
        for (int lane = 0; lane < kLanes; ++lane)
          store(scratch + (i + lane) * kLanes, from_bits(block[lane]));
      }
      for_each_tile(run, true, [&](int64_t token, auto tile) CPU_BACKEND_LAMBDA {
        constexpr int kTokens = decltype(tile)::tokens;
        const float* x = static_cast<const float*>(args.x) + token * args.x_stride;
        Y* y = static_cast<Y*>(args.y) + token * args.y_stride + first;
        Vec sums[kTokens] = {};
        for (int64_t i = 0; i < args.inputs; ++i) {
          const Vec row = load(scratch + i * kLanes);
          for (int t = 0; t < kTokens; ++t) sums[t] += broadcast(x[t * args.x_stride + i]) * row;
        }
        for (int t = 0; t < kTokens; ++t)
          store_n(y + t * args.y_stride, load_n(y + t * args.y_stride, n) + sums[t], n);
      });
    }
  });
}

}  // namespace CPU_BACKEND_NAMESPACE

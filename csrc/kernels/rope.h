// Rotary position embedding (Su et al. 2021) in place on query and key.
//
// Shapes    cos_sin [max_position, rotary_dim]: rotary_dim/2 cosines, then as many sines.
// Layouts   neox pairs channel i with i + rotary_dim/2; otherwise 2i with 2i + 1 (GPT-J).
// Numerics  fp32, each channel rounded once.
// Threads   none: tokens [slice.begin, slice.end).
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
CPU_BACKEND_INLINE void rotate_head(T* x, const T* cos, const T* sin, int half, bool neox,
                                    float sign) {
  if (neox) {
    for_each_vector(half, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const Vec c = load_n(cos + i, n);
      const Vec s = load_n(sin + i, n) * sign;
      const Vec a = load_n(x + i, n);
      const Vec b = load_n(x + half + i, n);
      store_n(x + i, a * c - b * s, n);
      store_n(x + half + i, b * c + a * s, n);
    });
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float c = to_float(cos[i]);
    const float s = to_float(sin[i]) * sign;
    const float a = to_float(x[2 * i]);
    const float b = to_float(x[2 * i + 1]);
    x[2 * i] = round_to<T>(a * c - b * s);
    x[2 * i + 1] = round_to<T>(b * c + a * s);
  }
}

template <class T>
void rope(const RopeArgs& args, Slice tokens) {
  const int half = args.rotary_dim / 2;
  const float sign = args.inverse ? -1.0f : 1.0f;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const T* cos = static_cast<const T*>(args.cos_sin) + args.positions[t] * args.rotary_dim;
    const T* sin = cos + half;
    T* query = args.query.at<T>(t, 0) + args.rope_offset;
    for (int h = 0; h < args.num_heads; ++h)
      rotate_head(query + h * args.query.head_stride, cos, sin, half, args.neox, sign);
    if (!args.key.data) continue;
    T* key = args.key.at<T>(t, 0) + args.rope_offset;
    for (int h = 0; h < args.num_kv_heads; ++h)
      rotate_head(key + h * args.key.head_stride, cos, sin, half, args.neox, sign);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

// The paged KV cache: its interior, and writing this step's keys and values into it.
//
//   one block (page) of one KV head, block_size = N tokens, key_dim = D channels of a key:
//
//   +-- keys: panels of W tokens, depth D --+-- values: panels of W channels, depth N --+
//   | k[0][t0 t1 ... tW-1]                  | v[t0][0 1 ... W-1]                        |
//   | k[1][t0 t1 ... tW-1]                  | v[t1][0 1 ... W-1]                        |
//   | ...                                   | ...                                       |
//   | k[0][tW tW+1 ... t2W-1]               | v[t0][W W+1 ... 2W-1]                     |
//   | ...                                   | ...                                       |
//   +---------------------------------------+-------------------------------------------+
//
// Both are panels of kernels/tiles/panel.h (several rows to a word, except fp32 and fp16), so Q*K^T
// runs with tokens in the vector lanes and P*V with channels in them, and neither needs a
// horizontal sum or a transpose; and each is read from its beginning to its end: as one panel of N
// tokens or D channels, whose steps lie N or D apart, decode attention over 8k tokens took 9 %
// longer (Zen 5). N, D and the width of values, which may be another than D, are multiples of 16.
// The last panel of W = kPanelWidth may be narrower.  With int8 codes two rows of fp32 follow: the
// scales of the N keys, then those of the N values.
//
// Codes     code = x / scale, to nearest even, saturating.  fp8: NaN stays NaN.  int8: where a
//           number of the row is not finite its scale is NaN, and so is what attends to it.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "kernels/panel_buffer.h"

namespace CPU_BACKEND_NAMESPACE {

template <class Code>
struct KvBlock {
  PanelBuffer<Code> key{};
  PanelBuffer<Code> value{};
  float* key_scales = nullptr;  // behind int8 codes only
  float* value_scales = nullptr;

  KvBlock() = default;
  CPU_BACKEND_INLINE KvBlock(const PagedKv& cache, int64_t block, int64_t head)
      : key{static_cast<Code*>(cache.base) + block * cache.block_stride + head * cache.head_stride,
            cache.key_dim, cache.block_size},
        value{key.at + key.depth * key.columns, cache.block_size, cache.value_dim} {
    if constexpr (kSame<Code, int8_t>) {
      key_scales = reinterpret_cast<float*>(value.at + value.depth * value.columns);
      value_scales = key_scales + cache.block_size;
    }
  }
};

// at(i) is where x[i] / scale goes, as it is or as a code.
template <class Code, class T, class At>
CPU_BACKEND_INLINE void write_row(const T* x, int64_t size, float scale, At at) {
  if constexpr (kSame<T, Code>) {
    for (int64_t i = 0; i < size; ++i) *at(i) = x[i];
  } else {
    for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      Code codes[kLanes];
      store(codes, load_n(x + i, n) / scale);
      for (int lane = 0; lane < n; ++lane) *at(i + lane) = codes[lane];
    });
  }
}

// Key of one token and head: a column of one panel; what does not change is computed once.
template <class T, class Code>
CPU_BACKEND_INLINE void write_key(const PagedKv& cache, const KvBlock<Code>& block, int64_t offset,
                                  const T* key, int64_t first_channel = 0) {
  Code* const column = block.key.at + block.key.offset(0, offset);
  const int64_t stride = block.key.width(offset);
  if constexpr (kSame<T, Code>) {
    constexpr int64_t kWord = kPairing<Code>;
    for (int64_t d = first_channel; d < cache.key_dim; d += kWord)
      __builtin_memcpy(column + panel_offset<Code>(d, 0, stride), key + d, kWord * sizeof(T));
    return;
  }
  float scale = cache.key_scale;
  if constexpr (kSame<Code, int8_t>) {
    block.key_scales[offset] = scale = integer_range(key, cache.key_dim).scale(127.0f);
    if (scale == 0.0f) scale = 1.0f;  // all codes are zero
  }
  write_row<Code>(key, cache.key_dim, scale, [&](int64_t d) CPU_BACKEND_LAMBDA {
    return column + panel_offset<Code>(d, 0, stride);
  });
}

// Value of one token and head: a row of each panel.
template <class T, class Code>
CPU_BACKEND_INLINE void write_value(const PagedKv& cache, const KvBlock<Code>& block,
                                    int64_t offset, const T* value) {
  float scale = cache.value_scale;
  if constexpr (kSame<Code, int8_t>) {
    block.value_scales[offset] = scale = integer_range(value, cache.value_dim).scale(127.0f);
    if (scale == 0.0f) scale = 1.0f;  // all codes are zero
  }
  for (int64_t first = 0; first < cache.value_dim; first += kPanelWidth) {
    Code* const row = block.value.at + block.value.offset(offset, first);
    write_row<Code>(value + first, block.value.width(first), scale,
                    [&](int64_t i)
                        CPU_BACKEND_LAMBDA { return row + panel_offset<Code>(0, i, 0); });
  }
}

// Values of two tokens side by side, the first at an even offset: whole vectors of words.
template <class Code>
CPU_BACKEND_INLINE void write_two_values(const PagedKv& cache, const KvBlock<Code>& block,
                                         int64_t offset, const Code* first, const Code* second) {
  for (int64_t c = 0; c < cache.value_dim; c += kLanes) {
    const VecU low = widen_bits(load_raw<VecH>((kFirstIsLow ? first : second) + c));
    const VecU high = widen_bits(load_raw<VecH>((kFirstIsLow ? second : first) + c));
    store_raw(block.value.at + block.value.offset(offset, c), low | high << 16);
  }
}

// Whether the tokens from t on, as those of a prompt do, follow each other for as many as fill
// whole squares of keys, which are in one page then: it holds a multiple of 16.
template <class T>
CPU_BACKEND_INLINE bool fill_square(const int64_t* slots, int64_t t, int64_t end) {
  constexpr int64_t kTokens = kSquareColumns<T>;
  static_assert(16 % kTokens == 0, "a square lies in one page");
  if (end - t < kTokens || slots[t] % kTokens != 0) return false;
  for (int64_t i = 1; i < kTokens; ++i)
    if (slots[t + i] != slots[t] + i) return false;
  return true;
}

// Keys and values of so many tokens from t on.  Keys transposed in registers: a word at a time took
// prompts 2.4 to 3.8 times as long (16 bits and fp32, AVX-512; AVX2 1.5 to 2.5).
template <class T>
void write_square(const WriteKvArgs& args, int64_t t) {
  constexpr int64_t kTokens = kSquareColumns<T>, kPair = kPairing<T>;
  const PagedKv& cache = args.cache;
  const int64_t offset = args.slots[t] % cache.block_size;
  const int64_t squares = cache.key_dim / kSquareDepth<T> * kSquareDepth<T>;
  for (int h = 0; h < args.num_kv_heads; ++h) {
    const KvBlock<T> block(cache, args.slots[t] / cache.block_size, h);
    const T* const key = args.key.at<T>(t, h);
    const T* const value = args.value.at<T>(t, h);
    const int64_t width = block.key.width(offset), first = block.key.first(offset);
    T* const panel = block.key.at + first * block.key.depth;
    for (int64_t d = 0; d < squares; d += kSquareDepth<T>)
      pack_squares(key + d, args.key.token_stride, panel + d * width, offset - first, width);
    for (int64_t i = 0; squares < cache.key_dim && i < kTokens; ++i)
      write_key(cache, block, offset + i, key + i * args.key.token_stride, squares);
    for (int64_t i = 0; i < kTokens; i += kPair) {
      const T* const at = value + i * args.value.token_stride;
      if constexpr (kPair == 2) {
        write_two_values(cache, block, offset + i, at, at + args.value.token_stride);
      } else {
        write_value(cache, block, offset + i, at);
      }
    }
  }
}

// Tokens [tokens.begin, tokens.end); a negative slot is skipped, nothing else is touched.
template <class T, class Code>
void write_kv(const WriteKvArgs& args, Slice tokens) {
  const PagedKv& cache = args.cache;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int64_t slot = args.slots[t];
    if (slot < 0) continue;
    if constexpr (kSame<T, Code>) {
      if (fill_square<T>(args.slots, t, tokens.end)) {
        write_square<T>(args, t);
        t += kSquareColumns<T> - 1;
        continue;
      }
    }
    const int64_t offset = slot % cache.block_size;
    for (int h = 0; h < args.num_kv_heads; ++h) {
      const T* key = args.key.at<T>(t, h);
      const T* value = args.value.at<T>(t, h);
      const KvBlock<Code> block(cache, slot / cache.block_size, h);
      write_key(cache, block, offset, key);
      write_value(cache, block, offset, value);
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

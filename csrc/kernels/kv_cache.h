// The paged KV cache: its interior, and writing this step's keys and values into it.
//
//   one block (page) of one KV head, block_size = N tokens, head_dim = D channels:
//
//   +-- key panel:   depth D, width N ----+-- value panel: depth N, width D --+
//   | k[0][t0 t1 ... tN-1]                | v[t0][0 1 ... D-1]                |
//   | k[1][t0 t1 ... tN-1]                | v[t1][0 1 ... D-1]                |
//   | ...                                 | ...                               |
//   +-------------------------------------+-----------------------------------+
//
// Both are panels of kernels/panel.h (bf16 rows in pairs), so Q*K^T runs with tokens in the vector
// lanes and P*V with channels in them, and neither needs a horizontal sum or a transpose.
// N and D are multiples of 16.
#pragma once

#include "core/slice.h"
#include "core/view.h"
#include "kernels/panel.h"

namespace CPU_BACKEND_NAMESPACE {

template <class T>
struct KvBlock {
  T* key = nullptr;
  T* value = nullptr;

  KvBlock() = default;
  CPU_BACKEND_INLINE KvBlock(const PagedKv& cache, int64_t block, int64_t head)
      : key(static_cast<T*>(cache.base) + block * cache.block_stride + head * cache.head_stride),
        value(key + static_cast<int64_t>(cache.block_size) * cache.head_dim) {}
};

// Tokens [tokens.begin, tokens.end); a negative slot is skipped, nothing else is touched.
template <class T>
void write_kv(const WriteKvArgs& args, Slice tokens) {
  const PagedKv& cache = args.cache;
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int64_t slot = args.slots[t];
    if (slot < 0) continue;
    const int64_t offset = slot % cache.block_size;
    for (int h = 0; h < args.num_kv_heads; ++h) {
      const KvBlock<T> block(cache, slot / cache.block_size, h);
      const T* key =
          static_cast<const T*>(args.key) + t * args.key_token_stride + h * args.key_head_stride;
      const T* value = static_cast<const T*>(args.value) + t * args.value_token_stride +
                       h * args.value_head_stride;
      for (int d = 0; d < cache.head_dim; ++d) {
        block.key[panel_offset<T>(d, offset, cache.block_size)] = key[d];
        block.value[panel_offset<T>(offset, d, cache.head_dim)] = value[d];
      }
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

// Which tokens each token attends to: the lightning indexer of DeepSeek V3.2 (2025).
//
// Scores    of position p for a token t: sum over heads h of weight[t][h] * scale * relu(q[t][h] .
//           k[p]), added in the order of the heads.
// Choice    the `most` positions of the highest scores, of equal ones the lower position, written
//           in ascending order.  A token with no more positions than that has all of them: nothing
//           is computed nor written for it.
// Shapes    query [tokens, heads, head_dim], weights [tokens, heads]; keys: panels of
//           kernels/kv_cache.h without values.  A row of scores has room for whole pages.
// Numerics  products as in kernels/attention.h, sums in fp32.  A score depends on its token and its
//           position alone, so a choice does not depend on the batch, chunks or threads.
// Threads   none: one token and some of its positions at a time; scratch of
//           score_scratch_floats().
#pragma once

#include "kernels/attention.h"
#include "kernels/step_pages.h"

namespace CPU_BACKEND_NAMESPACE {

static inline int64_t score_scratch_floats(const PagedKv& cache) {
  return kAttendRows * (static_cast<int64_t>(cache.key_dim) + cache.block_size);
}

// Scores of one token and the positions [begin, end) that it sees; begin is that of a page.
template <class T>
void score_tokens(const TokenChoiceArgs& args, int64_t token, Slice positions, float* scratch) {
  const TokenPlace place = place_of(args.pages, token);
  if (place.position < args.most) return;
  const PagedKv& cache = args.cache;
  const int64_t key_dim = cache.key_dim, block_size = cache.block_size;
  const int64_t end = positions.end < place.position + 1 ? positions.end : place.position + 1;
  const T* query = args.query.at<T>(token, 0);
  const T* weights = static_cast<const T*>(args.weights) + token * args.weights_stride;
  float* const row = args.scores + (token - args.first_token) * args.scores_stride;
  float* const products = scratch + kAttendRows * key_dim;
  for (int64_t head = 0; head < args.num_heads; head += kAttendRows) {
    const int64_t left = args.num_heads - head;
    const int64_t heads = left < kAttendRows ? left : kAttendRows;
    float factors[kAttendRows];
    for (int64_t h = 0; h < heads; ++h) {
      load_operand<T, T>(query + (head + h) * args.query.head_stride, key_dim,
                         scratch + h * key_dim);
      factors[h] = to_float(weights[head + h]) * args.scale;
    }
    for (int64_t first = positions.begin; first < end; first += block_size) {
      const int64_t count = end - first < block_size ? end - first : block_size;
      const KvBlock<T> block(cache, place.blocks[first / block_size], 0);
      const T* next = first + block_size < end
                          ? KvBlock<T>(cache, place.blocks[first / block_size + 1], 0).key.at
                          : nullptr;
      multiply_page<T>(heads, round_up(count, kWholeColumns<T>), scratch, key_dim, block.key, 0, 0,
                       key_dim, products, block_size, false, next, end - first - block_size,
                       nullptr);
      for (int64_t i = 0; i < count; i += kLanes) {
        Vec sum = head > 0 ? load(row + first + i) : Vec{};
        for (int64_t h = 0; h < heads; ++h) {
          const Vec product = load(products + h * block_size + i);
          sum = sum + factors[h] * CPU_BACKEND_TARGET::max(product, Vec{});
        }
        store(row + first + i, sum);
      }
    }
  }
}

// The bits of a number, in an order that is that of the numbers.
CPU_BACKEND_INLINE uint32_t ordered_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// From the scores of all positions that the token sees.
static inline void choose_tokens(const TokenChoiceArgs& args, int64_t token) {
  const TokenPlace place = place_of(args.pages, token);
  if (place.position < args.most) return;
  const int64_t count = place.position + 1;
  const float* const row = args.scores + (token - args.first_token) * args.scores_stride;
  // The bits of the least score that is chosen, eight at a time.
  uint32_t least = 0, known = 0;
  int64_t wanted = args.most;  // of those with the bits that are known
  for (int shift = 24; shift >= 0; shift -= 8) {
    int32_t counts[256] = {};
    for (int64_t p = 0; p < count; ++p) {
      const uint32_t bits = ordered_bits(row[p]);
      if ((bits & known) == least) ++counts[bits >> shift & 255];
    }
    uint32_t digit = 255;
    for (; counts[digit] < wanted; --digit) wanted -= counts[digit];
    least |= digit << shift;
    known |= 255u << shift;
  }
  int32_t* chosen = args.chosen + token * args.chosen_stride;
  for (int64_t p = 0; p < count; ++p) {
    const uint32_t bits = ordered_bits(row[p]);
    if (bits < least || (bits == least && wanted-- <= 0)) continue;
    *chosen++ = static_cast<int32_t>(p);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE

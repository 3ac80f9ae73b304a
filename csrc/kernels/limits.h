// What the machine gives at most: the yardstick that benchmarks put beside every figure.
//
// read_bytes     loads every vector of a buffer once.
// multiply_adds  runs independent chains of multiply-adds that never leave the registers.
// Both do so little besides that no kernel of this target can be faster than they are.
#pragma once

#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

// Places read side by side: more lines in flight than one stream has (Zen 3: 20 to 23 GB/s a core
// against 18 to 20; software prefetch on top lost).
constexpr int kReadStreams = 4;
// Independent chains: latency 4 times two per cycle needs 8 (x86, Neoverse); 12 leave slack and fit
// 16 registers beside the two operands.
constexpr int kChains = 12;

// The exclusive or of all 32-bit words of [data, data + bytes); bytes is a multiple of 4.
static inline uint32_t read_bytes(const void* data, int64_t bytes) {
  const char* base = static_cast<const char*>(data);
  const int64_t part = bytes / kReadStreams / kVectorBytes * kVectorBytes;
  VecU sums[kReadStreams] = {};
  for (int64_t i = 0; i < part; i += kVectorBytes)
    for (int s = 0; s < kReadStreams; ++s) sums[s] ^= load_raw<VecU>(base + s * part + i);
  uint32_t result = 0;
  for (const VecU& sum : sums)
    for (int lane = 0; lane < kLanes; ++lane) result ^= sum[lane];
  for (int64_t i = kReadStreams * part; i < bytes; i += 4) {
    uint32_t word;
    __builtin_memcpy(&word, base + i, sizeof word);
    result ^= word;
  }
  return result;
}

// `steps` times x <- x * factor + 1 on each of kChains vectors that start at 0, 1, 2, ...; the sum
// of all lanes goes to `result`, so that nothing can be left out.  Returns the operations done.
static inline int64_t multiply_adds(int64_t steps, float factor, float* result) {
  Vec x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = broadcast(static_cast<float>(i));
  const Vec f = broadcast(factor);
  const Vec one = broadcast(1.0f);
  for (int64_t s = 0; s < steps; ++s)
    for (int i = 0; i < kChains; ++i) x[i] = x[i] * f + one;
  Vec total{};
  for (int i = 0; i < kChains; ++i) total = total + x[i];
  *result = sum_lanes(total);
  return 2 * steps * kChains * kLanes;
}

}  // namespace CPU_BACKEND_NAMESPACE

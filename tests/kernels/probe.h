// The vector vocabulary of one target behind plain functions on arrays.
//
// isa/vec.h and isa/math.h exist only inside a target's own translation unit, compiled with its
// flags.  The tests themselves are compiled once, with the baseline's, and reach it through here.
#pragma once

#include <cstdint>

namespace cpu_backend::test {

// What multiplies bf16 without widening it first (isa/bf16_pairs.h, isa/blocks.h, isa/tiles.h).
enum class Bf16Unit { kNone, kPairs, kBlocks, kTiles };

struct Probe {
  const char* target;
  Bf16Unit bf16_unit;
  int lanes;

  // y[i] = f(x[i]) for any n >= 0
  void (*exp)(const float* x, float* y, int64_t n);
  void (*exp_nonpositive)(const float* x, float* y, int64_t n);
  void (*exp2_for_bf16)(const float* x, float* y, int64_t n);
  void (*sigmoid)(const float* x, float* y, int64_t n);
  void (*sigmoid_for_16_bits)(const float* x, float* y, int64_t n);
  void (*normal_tail_for_16_bits)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
  void (*erfc)(const float* x, float* y, int64_t n);
  void (*log)(const float* x, float* y, int64_t n);
  void (*abs)(const float* x, float* y, int64_t n);

  // y[i] = f(a[i], b[i])
  void (*max)(const float* a, const float* b, float* y, int64_t n);
  void (*min)(const float* a, const float* b, float* y, int64_t n);
  // y[i] = a[i] < b[i] ? a[i] : 7
  void (*select_less)(const float* a, const float* b, float* y, int64_t n);
  // y[i] = a[i] * b[i] + 1
  void (*multiply_add)(const float* a, const float* b, float* y, int64_t n);

  // Of exactly `lanes` values.
  float (*sum_lanes)(const float* x);
  float (*max_lanes)(const float* x);
  void (*lane_index)(int32_t first, int32_t* y);
  void (*broadcast)(float x, float* y);

  void (*widen_bf16)(const void* x, float* y, int64_t n);
  void (*widen_fp16)(const void* x, float* y, int64_t n);
  void (*narrow_bf16)(const float* x, void* y, int64_t n);
  void (*narrow_fp16)(const float* x, void* y, int64_t n);

  // The 8-bit formats, in full vectors only: n is a multiple of `lanes`.
  struct Codes {
    void (*widen)(const void* x, float* y, int64_t n);  // null for int8
    void (*narrow)(const float* x, void* y, int64_t n);
    // Pairs in memory order, n of them; null for int8.
    void (*widen_pairs)(const void* x, float* first, float* second, int64_t n);
    // The same by way of bf16, n a multiple of 2 * lanes; null where the target has no pairs of it.
    void (*widen_bf16_pairs)(const void* x, float* first, float* second, int64_t n);
  };
  Codes e4m3, e5m2, int8;

  // All `lanes` of load_partial(x, n), and store_partial of them.
  void (*load_partial)(const float* x, float* lanes, int n);
  void (*store_partial)(const float* lanes, float* y, int n);

  // y[i] = uniform(first + i, seed)
  void (*uniform)(int32_t first, uint64_t seed, float* y, int64_t n);
};

// The probe of a target of this build.
const Probe& probe_of(const char* target);

}  // namespace cpu_backend::test

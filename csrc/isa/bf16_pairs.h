// Dot products of bf16 pairs, where the hardware has them: VDPBF16PS.
//
// The order and the treatment of subnormal numbers are the instruction's, whatever the control
// register says; the generic definition is what the tests run and compare with.
#pragma once

#include "isa/vec.h"

#if defined(CPU_BACKEND_BF16_PAIRS)

namespace CPU_BACKEND_NAMESPACE {

#if !defined(__AVX512BF16__)
// Subnormal numbers are zeros, on the way in and on the way out.
CPU_BACKEND_INLINE Vec flush(Vec x) {
  return select(abs(x) < 0x1p-126f, from_bits(as_bits(x) & 0x80000000u), x);
}
#endif

// Per lane: acc + second(a) * second(b), then + first(a) * first(b), each rounded once; first and
// second of a pair as they lie in memory.
CPU_BACKEND_INLINE Vec dot_pairs(Vec acc, VecU a, VecU b) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
  acc = flush(flush(second_of_pair(a)) * flush(second_of_pair(b)) + flush(acc));
  return flush(flush(first_of_pair(a)) * flush(first_of_pair(b)) + acc);
#endif
}

}  // namespace CPU_BACKEND_NAMESPACE

#endif

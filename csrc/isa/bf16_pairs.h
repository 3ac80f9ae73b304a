// Dot products of bf16 pairs, where the hardware has them: VDPBF16PS, BFDOT and BFMMLA.
//
// The order, the rounding and the treatment of subnormal numbers are the instruction's, whatever
// the control register says; the generic definitions are what the tests run and compare with.
#pragma once

#include "isa/codes.h"

#if defined(CPU_BACKEND_BF16_PAIRS)

namespace CPU_BACKEND_NAMESPACE {

#if !defined(__AVX512BF16__) && !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Subnormal numbers are zeros, on the way in and on the way out.
CPU_BACKEND_INLINE Vec flush(Vec x) {
  return select(abs(x) < 0x1p-126f, from_bits(as_bits(x) & 0x80000000u), x);
}
#endif

#if defined(CPU_BACKEND_EMULATE_BLOCKS)
// a + b rounded to odd: of the two neighbours of an inexact sum the one that ends in a 1.  The
// error of rounding to nearest tells the direction (Knuth's TwoSum).
CPU_BACKEND_INLINE Vec add_to_odd(Vec a, Vec b) {
  const Vec sum = a + b;
  const Vec of_b = sum - a;
  const Vec error = (a - (sum - of_b)) + (b - of_b);
  const VecU bits = as_bits(sum);
  const VecI inexact = (error < 0.0f) | (error > 0.0f);  // NaN where the sum is infinite
  const VecI even = (bits & 1u) == 0u;
  const VecI outward = (VecI)(as_bits(error) ^ bits) >= 0;
  return flush(
      from_bits(bits + select(inexact & even, select(outward, VecU{} + 1u, VecU{} - 1u), VecU{})));
}
#endif

// Per lane, with first and second of a pair as they lie in memory: x86 acc + second(a) * second(b),
// then + first(a) * first(b), each rounded once; Arm acc + (first(a) * first(b) + second(a) *
// second(b)), each sum rounded to odd (Arm Architecture Reference Manual, BFDotAdd).
CPU_BACKEND_INLINE Vec dot_pairs(Vec acc, VecU a, VecU b) {
#if defined(__AVX512BF16__)
  return (Vec)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (Vec)vbfdotq_f32((float32x4_t)acc, (bfloat16x8_t)a, (bfloat16x8_t)b);
#elif defined(CPU_BACKEND_EMULATE_BLOCKS)
  const Vec first = flush(flush(first_of_pair(a)) * flush(first_of_pair(b)));
  const Vec second = flush(flush(second_of_pair(a)) * flush(second_of_pair(b)));
  return add_to_odd(flush(acc), add_to_odd(first, second));
#else
  acc = flush(flush(second_of_pair(a)) * flush(second_of_pair(b)) + flush(acc));
  return flush(flush(first_of_pair(a)) * flush(first_of_pair(b)) + acc);
#endif
}

// Pairs of numbers that bf16 holds exactly.
CPU_BACKEND_INLINE VecU joined_bf16(Vec first, Vec second) {
  const VecU low = as_bits(kFirstIsLow ? first : second);
  const VecU high = as_bits(kFirstIsLow ? second : first);
  return (low >> 16) | (high & 0xffff0000u);
}

// A word of each lane, in bf16, which holds every number of fp8.
CPU_BACKEND_INLINE VecU load_bf16_pairs(const bf16_t* p) { return load_raw<VecU>(p); }
template <class Code>
CPU_BACKEND_INLINE VecU load_bf16_pairs(const Code* p) {
  const auto pairs = load_pairs(p);
  return joined_bf16(first_of_pair(pairs), second_of_pair(pairs));
}
#if defined(__AVX512BW__)
// The same in half of the instructions.  With its bits moved to where bf16 has them, and 112 added
// to the exponent, whose bits are zero there, a number is what load() makes of it; but for the
// subnormal ones, for which a table has what makes the difference.
constexpr uint16_t kSubnormal[32] = {0x0000,          0x3700 ^ 1 << 4, 0x3780 ^ 2 << 4,
                                     0x37c0 ^ 3 << 4, 0x3800 ^ 4 << 4, 0x3820 ^ 5 << 4,
                                     0x3840 ^ 6 << 4, 0x3860 ^ 7 << 4};
CPU_BACKEND_INLINE VecU load_bf16_pairs(const fp8_t* p) {
  constexpr uint16_t kNormal = 112 << 7, kKept = 0x87f0;
  const __m512i words = (__m512i)load_pairs(reinterpret_cast<const int8_t*>(p));
  const __mmask32 subnormal = _mm512_testn_epi16_mask(words, _mm512_set1_epi16(0x78));
  const __m512i added = _mm512_mask_permutexvar_epi16(_mm512_set1_epi16(kNormal), subnormal, words,
                                                      load_raw<__m512i>(kSubnormal));
  return (VecU)((_mm512_slli_epi16(words, 4) & _mm512_set1_epi16((int16_t)kKept)) ^ added);
}
#endif

// Several words of each lane.
template <class T, int kWords>
CPU_BACKEND_INLINE void load_bf16_pairs(const T* p, VecU (&words)[kWords]) {
  for (int i = 0; i < kWords; ++i) words[i] = load_bf16_pairs(p + i * 2 * kLanes);
}
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
// Two of them by bytes, a vector at a time: the lower one of a number is its code, moved, the upper
// one has the sign, half of the exponent and 112 / 2.  Tables have both for magnitudes below 16,
// subnormal ones among them, and leave the others as they are.
constexpr uint8_t kSmallUpper[16] = {0x00, 0x37, 0x37, 0x37, 0x38, 0x38, 0x38, 0x38,
                                     0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38};
constexpr uint8_t kSmallLower[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60,
                                     0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0};
CPU_BACKEND_INLINE void load_bf16_pairs(const fp8_t* p, VecU (&words)[2]) {
  const uint8x16_t codes = load_raw<uint8x16_t>(p);
  const uint8x16_t magnitudes = vandq_u8(codes, vdupq_n_u8(0x7f));
  const uint8x16_t lower = vqtbx1q_u8(vshlq_n_u8(codes, 4), vld1q_u8(kSmallLower), magnitudes);
  uint8x16_t upper = vaddq_u8(vshrq_n_u8(magnitudes, 4), vdupq_n_u8(112 / 2));
  upper = vqtbx1q_u8(upper, vld1q_u8(kSmallUpper), magnitudes);
  upper = vbslq_u8(vdupq_n_u8(0x80), codes, upper);
  words[0] = (VecU)vzip1q_u8(lower, upper);
  words[1] = (VecU)vzip2q_u8(lower, upper);
}
#endif

}  // namespace CPU_BACKEND_NAMESPACE

#endif

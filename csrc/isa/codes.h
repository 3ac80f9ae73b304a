// 8-bit storage: e4m3, e5m2 and int8, widened on load and rounded on store.  int8 is widened to
// 16-bit integers, in pairs for dot_pairs() of isa/dot.h.
//
// Both fp8 formats are widened by fp16's own conversion: e5m2 is its upper byte, and e4m3 becomes
// fp16 times 2^-8 with one shift, because its exponent, in fp16's wider field, is 8 too small.
// What is loaded is therefore the number over kUnit<T>; whoever sums it scales once.
// Tests: tests/kernels/test_codes.cpp, against the scalar conversions in isa/half.h.
#pragma once

#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

template <class T>
constexpr float kUnit = 1.0f;
template <>
constexpr float kUnit<fp8_t> = 256.0f;

// Nearest integer, ties to even, of |x| < 2^22.
constexpr float kRoundToInt = 12582912.0f;  // 1.5 * 2^23, 0x4b400000: adding it rounds
CPU_BACKEND_INLINE VecI round_to_int(Vec x) {
  return (VecI)(as_bits(x + kRoundToInt) - 0x4b400000u);
}
// The same of |x| < 2^15, as 16-bit numbers.
CPU_BACKEND_INLINE VecH round_to_int16(Vec x) { return narrow_bits(as_bits(x + kRoundToInt)); }

// ---- one number per byte -----------------------------------------------------------------------

// The numbers in the upper bytes, whatever the lower ones hold.
template <class T>
CPU_BACKEND_INLINE Vec widen_upper(VecH h);
template <>
CPU_BACKEND_INLINE Vec widen_upper<e5m2_t>(VecH h) {
  return widen_fp16(h & (uint16_t)0xff00);
}
template <>
CPU_BACKEND_INLINE Vec widen_upper<fp8_t>(VecH h) {
  typedef int16_t Signed __attribute__((vector_size(kVectorBytes / 2)));
  return widen_fp16((VecH)((Signed)h >> 1) & (uint16_t)0xbf80);
}

template <class T>
CPU_BACKEND_INLINE Vec load_fp8(const T* p) {
  typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 4)));
  return widen_upper<T>(__builtin_convertvector(load_raw<Bytes>(p), VecH) << 8);
}
CPU_BACKEND_INLINE Vec load(const fp8_t* p) { return load_fp8(p); }
CPU_BACKEND_INLINE Vec load(const e5m2_t* p) { return load_fp8(p); }

// To nearest even, saturating at `largest`; NaN stays NaN.
template <int kMantissa, int kBias>
CPU_BACKEND_INLINE VecB narrow_fp8(Vec x, float largest) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kNormal = (128u - kBias) << 23;  // the smallest normal number
  // The ulp of this is the step of the subnormal numbers: the addition rounds to it.
  constexpr uint32_t kRound = (127u + 24 - kBias - kMantissa) << 23;
  const VecU a = as_bits(min(abs(x), broadcast(largest)));
  const VecU normal = ((a + ((1u << (kShift - 1)) - 1u) + ((a >> kShift) & 1u)) >> kShift) -
                      ((127u - kBias) << kMantissa);
  const VecU subnormal = as_bits(from_bits(a) + from_bits(VecU{} + kRound)) - kRound;
  VecU code = select(a < kNormal, subnormal, normal);
  code = select(x != x, VecU{} + 0x7fu, code) | ((as_bits(x) >> 24) & 0x80u);
  return narrow_to_bytes(code);
}
CPU_BACKEND_INLINE void store(fp8_t* p, Vec v) { store_raw(p, narrow_fp8<3, 7>(v, 448.0f)); }
CPU_BACKEND_INLINE void store(e5m2_t* p, Vec v) { store_raw(p, narrow_fp8<2, 15>(v, 57344.0f)); }
CPU_BACKEND_INLINE void store(int8_t* p, Vec v) {
  const Vec held = max(min(v, broadcast(127.0f)), broadcast(-127.0f));
  store_raw(p, narrow_to_bytes((VecU)round_to_int(held)));
}

// ---- two numbers per 16-bit word, in memory order ----------------------------------------------

template <class T>
struct BytePairs {
  VecH words;
};
CPU_BACKEND_INLINE BytePairs<fp8_t> load_pairs(const fp8_t* p) { return {load_raw<VecH>(p)}; }
CPU_BACKEND_INLINE BytePairs<e5m2_t> load_pairs(const e5m2_t* p) { return {load_raw<VecH>(p)}; }
template <class T>
CPU_BACKEND_INLINE Vec first_of_pair(BytePairs<T> pairs) {
  return widen_upper<T>(kFirstIsLow ? pairs.words << 8 : pairs.words);
}
template <class T>
CPU_BACKEND_INLINE Vec second_of_pair(BytePairs<T> pairs) {
  return widen_upper<T>(kFirstIsLow ? pairs.words : pairs.words << 8);
}

// A lane holds both of a pair, as 16-bit integers in memory order.
CPU_BACKEND_INLINE VecU load_pairs(const uint8_t* p) {
  typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes / 2)));
  const Bytes bytes = load_raw<Bytes>(p);
#if defined(__AVX512BW__)  // GCC widens both halves apart and joins them again
  return (VecU)_mm512_cvtepu8_epi16((__m256i)bytes);
#elif defined(__AVX2__)
  return (VecU)_mm256_cvtepu8_epi16((__m128i)bytes);
#elif defined(__aarch64__)  // which GCC 12 does one by one
  return (VecU)vmovl_u8((uint8x8_t)bytes);
#else
  typedef uint16_t Wide __attribute__((vector_size(kVectorBytes)));
  return (VecU) __builtin_convertvector(bytes, Wide);
#endif
}
CPU_BACKEND_INLINE VecI load_pairs(const int8_t* p) {
  typedef int8_t Bytes __attribute__((vector_size(kVectorBytes / 2)));
  const Bytes bytes = load_raw<Bytes>(p);
#if defined(__AVX512BW__)
  return (VecI)_mm512_cvtepi8_epi16((__m256i)bytes);
#elif defined(__AVX2__)
  return (VecI)_mm256_cvtepi8_epi16((__m128i)bytes);
#elif defined(__aarch64__)
  return (VecI)vmovl_s8((int8x8_t)bytes);
#else
  typedef int16_t Wide __attribute__((vector_size(kVectorBytes)));
  return (VecI) __builtin_convertvector(bytes, Wide);
#endif
}

}  // namespace CPU_BACKEND_NAMESPACE

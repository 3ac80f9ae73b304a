// The vector vocabulary: everything a kernel may say about SIMD.
//
// A Vec holds kLanes fp32 values; storage types (float, bf16_t, fp16_t) are widened on load and
// rounded once, to nearest even, on store.  Compiler vectors give one definition for every target;
// only 16-bit conversions and the masked tails of AVX-512 need an intrinsic.
// a * b + c on Vec contracts to one fused multiply-add where the target has it
// (-ffp-contract=fast). Tests: tests/kernels/test_vec.cpp, against the scalar conversions in
// isa/half.h.
#pragma once

#include "core/machine.h"
#include "isa/half.h"
#include "isa/target.h"

namespace CPU_BACKEND_NAMESPACE {

typedef float Vec __attribute__((vector_size(kVectorBytes)));
typedef int32_t VecI __attribute__((vector_size(kVectorBytes)));
typedef uint32_t VecU __attribute__((vector_size(kVectorBytes)));
typedef uint16_t VecH __attribute__((vector_size(kVectorBytes / 2)));
typedef int8_t VecB __attribute__((vector_size(kVectorBytes / 4)));

CPU_BACKEND_INLINE Vec broadcast(float x) { return x - Vec{}; }
CPU_BACKEND_INLINE VecI broadcast(int32_t x) { return x - VecI{}; }
CPU_BACKEND_INLINE VecU as_bits(Vec x) { return (VecU)x; }
CPU_BACKEND_INLINE Vec from_bits(VecU x) { return (Vec)x; }

// Lane numbers 0, 1, 2, ... plus `first`.
CPU_BACKEND_INLINE VecI lane_index(int32_t first) {
  VecI v{};
  for (int i = 0; i < kLanes; ++i) v[i] = i;
  return v + first;
}

// mask lanes are all-ones or all-zeros, as comparisons give them.
CPU_BACKEND_INLINE Vec select(VecI mask, Vec yes, Vec no) { return mask ? yes : no; }
CPU_BACKEND_INLINE VecU select(VecI mask, VecU yes, VecU no) { return mask ? yes : no; }
CPU_BACKEND_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
CPU_BACKEND_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
CPU_BACKEND_INLINE Vec abs(Vec x) { return from_bits(as_bits(x) & 0x7fffffffu); }

// 1 / x of a normal number up to 2^126; with AVX-512 to 1 ulp, by a step of Newton's method instead
// of a division.
CPU_BACKEND_INLINE Vec reciprocal(Vec x) {
#if CPU_BACKEND_VECTOR_BYTES == 64
  const Vec y = (Vec)_mm512_rcp14_ps((__m512)x);
  return y + y * (1.0f - x * y);
#else
  return 1.0f / x;
#endif
}

// All lanes joined by op, in a fixed order: halves, then halves of halves.  Through memory, as
// compilers have it without help, every half would wait for the store of the one before.
template <class T, class V, class Op>
CPU_BACKEND_INLINE T fold_lanes(V v, Op op) {
  typedef T Four __attribute__((vector_size(16)));
#if CPU_BACKEND_VECTOR_BYTES == 64
  typedef T Eight __attribute__((vector_size(32)));
  const Eight eight =
      op((Eight)_mm512_castps512_ps256((__m512)v), (Eight)_mm512_extractf32x8_ps((__m512)v, 1));
#elif CPU_BACKEND_VECTOR_BYTES == 32
  const V eight = v;
#endif
#if CPU_BACKEND_VECTOR_BYTES > 16
  const Four x = op((Four)_mm256_castps256_ps128((__m256)eight),
                    (Four)_mm256_extractf128_ps((__m256)eight, 1));
#else
  const Four x = v;
#endif
  return op(op(x[0], x[2]), op(x[1], x[3]));
}
CPU_BACKEND_INLINE float sum_lanes(Vec v) {
  return fold_lanes<float>(v, [](auto a, auto b) CPU_BACKEND_LAMBDA { return a + b; });
}
CPU_BACKEND_INLINE int32_t sum_lanes(VecI v) {
  return fold_lanes<int32_t>(v, [](auto a, auto b) CPU_BACKEND_LAMBDA { return a + b; });
}
CPU_BACKEND_INLINE float max_lanes(Vec v) {
  return fold_lanes<float>(v, [](auto a, auto b) CPU_BACKEND_LAMBDA { return a > b ? a : b; });
}
CPU_BACKEND_INLINE int32_t max_lanes(VecI v) {
  return fold_lanes<int32_t>(v, [](auto a, auto b) CPU_BACKEND_LAMBDA { return a > b ? a : b; });
}

// ---- conversions, one vector at a time ---------------------------------------------------------

// By __builtin_convertvector GCC 12 converts halves of vectors, in five instructions, and narrows
// to bytes one at a time.
CPU_BACKEND_INLINE VecU widen_bits(VecH h) {
#if CPU_BACKEND_VECTOR_BYTES == 64
  return (VecU)_mm512_cvtepu16_epi32((__m256i)h);
#elif CPU_BACKEND_VECTOR_BYTES == 32 && defined(__AVX2__)
  return (VecU)_mm256_cvtepu16_epi32((__m128i)h);
#else
  return __builtin_convertvector(h, VecU);
#endif
}

// The lower half of each lane.
CPU_BACKEND_INLINE VecH narrow_bits(VecU u) {
#if CPU_BACKEND_VECTOR_BYTES == 64
  return (VecH)_mm512_cvtepi32_epi16((__m512i)u);
#elif CPU_BACKEND_VECTOR_BYTES == 32 && defined(__AVX2__)
  const __m256i lower = _mm256_set1_epi64x(0x0d0c090805040100);
  const __m256i halves = _mm256_shuffle_epi8((__m256i)u, lower);
  return (VecH)_mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
#else
  return __builtin_convertvector(u, VecH);
#endif
}

// The lowest byte of each lane.
CPU_BACKEND_INLINE VecB narrow_to_bytes(VecU u) {
#if CPU_BACKEND_VECTOR_BYTES == 64
  return (VecB)_mm512_cvtepi32_epi8((__m512i)u);
#elif CPU_BACKEND_VECTOR_BYTES == 32 && defined(__AVX2__)
  const __m256i quarters = _mm256_shuffle_epi8((__m256i)u, _mm256_set1_epi32(0x0c080400));
  const __m128i joined =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(quarters), _mm256_extracti128_si256(quarters, 1));
  VecB bytes;
  __builtin_memcpy(&bytes, &joined, sizeof bytes);
  return bytes;
#else
  return __builtin_convertvector(u, VecB);
#endif
}

CPU_BACKEND_INLINE Vec widen_bf16(VecH h) { return from_bits(widen_bits(h) << 16); }

CPU_BACKEND_INLINE VecH narrow_bf16(Vec x) {
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return (VecH)vcvt_bf16_f32((float32x4_t)x);
#else
  const VecU u = as_bits(x);
  const VecU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const VecU quiet_nan = (u >> 16) | 0x40u;
  return narrow_bits(select(x != x, quiet_nan, rounded));
#endif
}

// The same where no number is subnormal: hardware makes those zeros.
CPU_BACKEND_INLINE VecH narrow_normal_bf16(Vec x) {
#if defined(__AVX512BF16__)
  return (VecH)_mm512_cvtneps_pbh((__m512)x);
#else
  return narrow_bf16(x);
#endif
}

CPU_BACKEND_INLINE Vec widen_fp16(VecH h) {
#if CPU_BACKEND_VECTOR_BYTES == 64
  return (Vec)_mm512_cvtph_ps((__m256i)h);
#elif CPU_BACKEND_VECTOR_BYTES == 32 && defined(__F16C__)
  return (Vec)_mm256_cvtph_ps((__m128i)h);
#elif defined(__aarch64__)
  return (Vec)vcvt_f32_f16((float16x4_t)h);
#else
  const VecU u = widen_bits(h);
  const VecU sign = (u & 0x8000u) << 16;
  // Shifting the exponent into place leaves it 112 too small; the multiply repairs it and
  // normalizes subnormals on the way.
  const Vec magnitude = from_bits((u & 0x7fffu) << 13) * 0x1p112f;
  const VecI special = (u & 0x7c00u) == 0x7c00u;
  return from_bits(select(special, as_bits(magnitude) | 0x7f800000u, as_bits(magnitude)) | sign);
#endif
}

CPU_BACKEND_INLINE VecH narrow_fp16(Vec x) {
#if CPU_BACKEND_VECTOR_BYTES == 64
  return (VecH)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif CPU_BACKEND_VECTOR_BYTES == 32 && defined(__F16C__)
  return (VecH)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
  return (VecH)vcvt_f16_f32((float32x4_t)x);
#else
  const VecU u = as_bits(x);
  const VecU sign = (u >> 16) & 0x8000u;
  const VecU a = u & 0x7fffffffu;
  const VecU normal = ((a + 0xfffu + ((a >> 13) & 1u)) >> 13) - (112u << 10);
  // 0.5 has an ulp of 2^-24, the step of fp16 subnormals: the addition rounds to it.
  const VecU subnormal = as_bits(from_bits(a) + 0.5f) - 0x3f000000u;
  const VecU overflow = select(a > 0x7f800000u, VecU{} + 0x7e00u, VecU{} + 0x7c00u);
  VecU h = select(a < 0x38800000u, subnormal, normal);
  h = select(a >= 0x477ff000u, overflow, h);
  return narrow_bits(h | sign);
#endif
}

// Both bf16 of a word, widened.  A pair lies in memory order, so the first is the low half of the
// 32-bit value on little-endian machines and the high half on big-endian ones.
constexpr bool kFirstIsLow = kLittleEndian;
CPU_BACKEND_INLINE Vec first_of_pair(VecU words) {
  return from_bits(kFirstIsLow ? words << 16 : words & 0xffff0000u);
}
CPU_BACKEND_INLINE Vec second_of_pair(VecU words) {
  return from_bits(kFirstIsLow ? words & 0xffff0000u : words << 16);
}

// ---- lanes of two vectors ----------------------------------------------------------------------

// Lanes first, first + 1, ... of both in turns.
CPU_BACKEND_INLINE VecU zip(VecU a, VecU b, int first) {
#if defined(__clang__)  // which makes a shuffle of it
  VecU zipped{};
  for (int i = 0; i < kLanes; ++i) zipped[i] = i % 2 ? b[first + i / 2] : a[first + i / 2];
  return zipped;
#else
  VecU lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = static_cast<uint32_t>(first + i / 2 + i % 2 * kLanes);
  return __builtin_shuffle(a, b, lanes);
#endif
}

// rows[i][j] becomes rows[j][i]: as often as kLanes has bits, the first half of the rows is zipped
// with the second.
CPU_BACKEND_INLINE void transpose(VecU (&rows)[kLanes]) {
  constexpr int kHalf = kLanes / 2;
  for (int bit = 1; bit < kLanes; bit *= 2) {
    VecU zipped[kLanes];
    for (int i = 0; i < kHalf; ++i) {
      zipped[2 * i] = zip(rows[i], rows[i + kHalf], 0);
      zipped[2 * i + 1] = zip(rows[i], rows[i + kHalf], kHalf);
    }
    for (int i = 0; i < kLanes; ++i) rows[i] = zipped[i];
  }
}

// ---- memory ------------------------------------------------------------------------------------

template <class V, class T>
CPU_BACKEND_INLINE V load_raw(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V, class T>
CPU_BACKEND_INLINE void store_raw(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof v);
}

CPU_BACKEND_INLINE VecU load_pairs(const bf16_t* p) { return load_raw<VecU>(p); }
CPU_BACKEND_INLINE Vec load(const float* p) { return load_raw<Vec>(p); }
CPU_BACKEND_INLINE Vec load(const bf16_t* p) { return widen_bf16(load_raw<VecH>(p)); }
CPU_BACKEND_INLINE Vec load(const fp16_t* p) { return widen_fp16(load_raw<VecH>(p)); }
CPU_BACKEND_INLINE void store(float* p, Vec v) { store_raw(p, v); }
CPU_BACKEND_INLINE void store(bf16_t* p, Vec v) { store_raw(p, narrow_bf16(v)); }
CPU_BACKEND_INLINE void store(fp16_t* p, Vec v) { store_raw(p, narrow_fp16(v)); }

// The first n lanes (0 <= n <= kLanes); the others load as zero and are not stored.
template <class T>
CPU_BACKEND_INLINE Vec load_partial(const T* p, int n) {
  T tmp[kLanes] = {};
  for (int i = 0; i < n; ++i) tmp[i] = p[i];
  return load(tmp);
}
template <class T>
CPU_BACKEND_INLINE void store_partial(T* p, Vec v, int n) {
  T tmp[kLanes];
  store(tmp, v);
  for (int i = 0; i < n; ++i) p[i] = tmp[i];
}

// f(offset, n) over [0, size): full vectors first, then one tail of n < kLanes.  One call for both:
// of two copies of f the compiler may contract different products, and the bits of an element would
// depend on where it lies.
template <class F>
CPU_BACKEND_INLINE void for_each_vector(int64_t size, F f) {
  for (int64_t i = 0; i < size; i += kLanes)
    f(i, static_cast<int>(size - i < kLanes ? size - i : kLanes));
}

template <class T>
CPU_BACKEND_INLINE Vec load_n(const T* p, int n) {
  return n == kLanes ? load(p) : load_partial(p, n);
}
template <class T>
CPU_BACKEND_INLINE void store_n(T* p, Vec v, int n) {
  if (n == kLanes) {
    store(p, v);
  } else {
    store_partial(p, v, n);
  }
}

// The same, but subnormal bf16 numbers become zeros where the target has an instruction for the
// rest: for results that none of sense is among.
template <class T>
CPU_BACKEND_INLINE void store_normal_n(T* p, Vec v, int n) {
  store_n(p, v, n);
}
CPU_BACKEND_INLINE void store_normal_n(bf16_t* p, Vec v, int n) {
  if (n == kLanes) return store_raw(p, narrow_normal_bf16(v));
  store_partial(p, widen_bf16(narrow_normal_bf16(v)), n);
}

}  // namespace CPU_BACKEND_NAMESPACE

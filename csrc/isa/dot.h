// Integer dot products inside 32-bit lanes: what the quantized kernels need beyond isa/vec.h.
//
// pairs   a lane holds two signed 16-bit numbers; sums are exact modulo 2^32.
// quads   a lane holds four 8-bit numbers, signed activations against unsigned codes.  Sums go
//         through a QuadSum, which some targets keep in 16 bits: with codes below 16 it holds
//         kQuadChain of them, then add_quad_sum() must empty it.  Larger codes are allowed where
//         kQuads8.
// Bytes and halves are counted by value (shifts), so lanes mean the same in either byte order.
#pragma once

#include "isa/codes.h"

namespace CPU_BACKEND_NAMESPACE {

typedef int16_t VecS __attribute__((vector_size(kVectorBytes)));

CPU_BACKEND_INLINE Vec from_int(VecI x) { return __builtin_convertvector(x, Vec); }

// The upper four bits of each byte.
CPU_BACKEND_INLINE VecU upper_nibbles(VecU x) {
#if defined(__aarch64__)
  return (VecU)vshrq_n_u8((uint8x16_t)x, 4);
#else
  typedef uint16_t Halves __attribute__((vector_size(kVectorBytes)));
  return (VecU)((Halves)x >> 4) & 0x0f0f0f0fu;
#endif
}

// Computes x here and now.  GCC likes to collect integer additions of several steps at their end,
// which takes more registers than there are: half of the speed of the register tiles.
template <class V>
CPU_BACKEND_INLINE V settled(V x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// sum + a.low * b.low + a.high * b.high
CPU_BACKEND_INLINE VecI dot_pairs(VecI sum, VecI a, VecI b) {
#if defined(__AVX512VNNI__)
  return (VecI)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return settled(sum + (VecI)_mm512_madd_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVXVNNI__)
  return (VecI)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
  return settled(sum + (VecI)_mm256_madd_epi16((__m256i)a, (__m256i)b));
#elif defined(__aarch64__)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return settled(
      sum + (VecI)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
#else
  const VecU low = (VecU)((a << 16) >> 16) * (VecU)((b << 16) >> 16);
  return (VecI)((VecU)sum + low + (VecU)(a >> 16) * (VecU)(b >> 16));
#endif
}

// The same, added where the sum is, while GCC moves about what settled() leaves to it: attention
// gains by it, but one row of quantized weights loses 8 %.
CPU_BACKEND_INLINE VecI dot_pairs_in_place(VecI sum, VecI a, VecI b) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
  const VecI products = dot_pairs(VecI{}, a, b);
  asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(products));
  return sum;
#else
  return dot_pairs(sum, a, b);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512VNNI__) && !defined(__AVXVNNI__)
typedef VecS QuadSum;
constexpr int kQuadChain = 8;  // 8 * 2 * 15 * 128 = 30720
constexpr bool kQuads8 = false;
#else
typedef VecI QuadSum;
constexpr int kQuadChain = 1 << 20;
constexpr bool kQuads8 = true;
#endif

// sum + the four products of a and codes, each signed or not, by plain vectors and modulo 2^32.
template <bool kSigned, bool kSignedCodes = false>
CPU_BACKEND_INLINE VecU dot_bytes(VecU sum, VecU a, VecU codes) {
  for (int byte = 0; byte < 4; ++byte) {
    const VecU x = kSigned ? (VecU)((VecI)(a << (24 - 8 * byte)) >> 24) : (a >> (8 * byte)) & 0xffu;
    if constexpr (kSignedCodes) {
      sum = sum + x * (VecU)((VecI)(codes << (24 - 8 * byte)) >> 24);
    } else {
      sum = sum + x * ((codes >> (8 * byte)) & 0xffu);
    }
  }
  return sum;
}

// sum + the four products of a (signed) and codes (unsigned, below 2^kBits).
template <int kBits>
CPU_BACKEND_INLINE QuadSum dot_quads(QuadSum sum, VecI a, VecU codes) {
#if defined(__AVX512VNNI__)
  return (VecI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)a);
#elif defined(__AVX512BW__)
  return settled(sum + (VecS)_mm512_maddubs_epi16((__m512i)codes, (__m512i)a));
#elif defined(__AVXVNNI__)
  return (VecI)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)a);
#elif defined(__AVX2__)
  return settled(sum + (VecS)_mm256_maddubs_epi16((__m256i)codes, (__m256i)a));
#else
  return (VecI)dot_bytes<true>((VecU)sum, (VecU)a, codes);
#endif
}

// The same of one of two quads for all lanes, modulo 2^32; kSigned: only where kSignedBytes, or by
// codes below 128.
typedef uint32_t TwoQuads __attribute__((vector_size(8)));
template <bool kSigned, int kQuad>
CPU_BACKEND_INLINE VecU dot_quad_of(VecU sum, TwoQuads a, VecU codes) {
#if defined(__ARM_FEATURE_DOTPROD)
  const uint8x16_t bytes = (uint8x16_t)codes;
  if constexpr (kSigned) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    return (VecU)vusdotq_lane_s32((int32x4_t)sum, bytes, (int8x8_t)a, kQuad);
#else
    return (VecU)vdotq_lane_s32((int32x4_t)sum, (int8x16_t)bytes, (int8x8_t)a, kQuad);
#endif
  }
  return (VecU)vdotq_lane_u32((uint32x4_t)sum, bytes, (uint8x8_t)a, kQuad);
#else
  return dot_bytes<kSigned>(sum, VecU{} + a[kQuad], codes);
#endif
}

#if defined(CPU_BACKEND_PLANES)
// sum + the four products of signed bytes: of one of four quads for all lanes, and of codes.
template <int kQuad>
CPU_BACKEND_INLINE VecI dot_signed_quad_of(VecI sum, VecI a, VecI codes) {
#if defined(__ARM_FEATURE_DOTPROD)
  return (VecI)vdotq_laneq_s32((int32x4_t)sum, (int8x16_t)codes, (int8x16_t)a, kQuad);
#else
  return (VecI)dot_bytes<true, true>((VecU)sum, VecU{} + (uint32_t)a[kQuad], (VecU)codes);
#endif
}

// Eight numbers x = 256 * upper + lower as their upper bytes, then their lower ones, both signed.
CPU_BACKEND_INLINE void store_planes(void* at, VecH first, VecH second) {
  int8_t* const bytes = static_cast<int8_t*>(at);
#if defined(__aarch64__)
  const int16x8_t x = vcombine_s16((int16x4_t)first, (int16x4_t)second);
  store_raw(bytes, vcombine_s8(vrshrn_n_s16(x, 8), vmovn_s16(x)));
#else
  store_raw(bytes, narrow_to_bytes((widen_bits(first) + 128u) >> 8));
  store_raw(bytes + kLanes, narrow_to_bytes((widen_bits(second) + 128u) >> 8));
  store_raw(bytes + 2 * kLanes, narrow_to_bytes(widen_bits(first)));
  store_raw(bytes + 3 * kLanes, narrow_to_bytes(widen_bits(second)));
#endif
}
#endif

CPU_BACKEND_INLINE VecI add_quad_sum(VecI sum, QuadSum quads) {
  if constexpr (kSame<QuadSum, VecI>) {
    return sum + (VecI)quads;
  } else {
    return dot_pairs(sum, (VecI)quads, broadcast(0x00010001));
  }
}

// Sixteen bytes in a register, to choose from.
class ByteTable {
 public:
  CPU_BACKEND_INLINE ByteTable() {}
  CPU_BACKEND_INLINE explicit ByteTable(const uint8_t (&bytes)[16]) {
#if defined(__AVX512BW__)
    table_ = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
    table_ = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__aarch64__)
    table_ = vld1q_u8(bytes);
#else
    __builtin_memcpy(table_, bytes, sizeof table_);
#endif
  }
  // The byte that each byte of x, below 16, stands for.
  CPU_BACKEND_INLINE VecU operator[](VecU x) const {
#if defined(__AVX512BW__)
    return (VecU)_mm512_shuffle_epi8(table_, (__m512i)x);
#elif defined(__AVX2__)
    return (VecU)_mm256_shuffle_epi8(table_, (__m256i)x);
#elif defined(__aarch64__)
    return (VecU)vqtbl1q_u8(table_, (uint8x16_t)x);
#else
    return one_by_one(x);
#endif
  }

 private:
#if defined(__AVX512BW__)
  __m512i table_;
#elif defined(__AVX2__)
  __m256i table_;
#elif defined(__aarch64__)
  uint8x16_t table_;
#else
  // Out of line: unrolled in every tile it takes 100 KB more.
  CPU_BACKEND_NOINLINE VecU one_by_one(VecU x) const {
    typedef uint8_t Bytes __attribute__((vector_size(kVectorBytes)));
    Bytes bytes = (Bytes)x;
    for (int i = 0; i < kVectorBytes; ++i) bytes[i] = table_[bytes[i]];
    return (VecU)bytes;
  }
  uint8_t table_[16];
#endif
};

}  // namespace CPU_BACKEND_NAMESPACE

// Storage formats of 16 and 8 bits and their exact scalar conversions: the definition that the
// vector conversions of isa/vec.h and isa/codes.h are tested against.  Values are held as integers,
// so byte order never matters outside a memcpy of the whole value.
#pragma once

#include <cstdint>
#include <cstring>

namespace cpu_backend {

// Distinct types, so that an overload can never take one format for the other.
enum class bf16_t : uint16_t {};
enum class fp16_t : uint16_t {};
enum class fp8_t : uint8_t {};   // e4m3fn: no infinity, and one magnitude is NaN
enum class e5m2_t : uint8_t {};  // the upper byte of fp16

static inline uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static inline float to_float(float x) { return x; }
static inline float to_float(bf16_t h) { return bits_float(static_cast<uint32_t>(h) << 16); }
static inline float to_float(fp16_t h) {
  const uint32_t u = static_cast<uint32_t>(h);
  const uint32_t sign = (u & 0x8000u) << 16;
  const uint32_t exponent = (u >> 10) & 31u;
  const uint32_t mantissa = u & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return bits_float(float_bits(magnitude) | sign);
  }
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  return bits_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}
static inline float to_float(fp8_t b) {
  const uint32_t u = static_cast<uint32_t>(b);
  const uint32_t sign = (u & 0x80u) << 24;
  const uint32_t exponent = (u >> 3) & 15u;
  const uint32_t mantissa = u & 7u;
  if (exponent == 15 && mantissa == 7) return bits_float(sign | 0x7fc00000u);
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-9
    return bits_float(float_bits(static_cast<float>(mantissa) * 0x1p-9f) | sign);
  }
  return bits_float(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}
static inline float to_float(e5m2_t b) {
  return to_float(static_cast<fp16_t>(static_cast<uint32_t>(b) << 8));
}
static inline float to_float(int8_t code) { return static_cast<float>(code); }

// Round to nearest even; NaN stays NaN (quiet).
static inline bf16_t round_to_bf16(float x) {
  const uint32_t u = float_bits(x);
  if (x != x) return static_cast<bf16_t>((u >> 16) | 0x40u);
  return static_cast<bf16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline fp16_t round_to_fp16(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<fp16_t>(sign | 0x7e00u);
  if (a >= 0x477ff000u) return static_cast<fp16_t>(sign | 0x7c00u);  // >= 65520 rounds to inf
  if (a < 0x38800000u) {  // below 2^-14: the addition rounds to multiples of 2^-24
    return static_cast<fp16_t>(sign | (float_bits(bits_float(a) + 0.5f) - 0x3f000000u));
  }
  return static_cast<fp16_t>(sign | (((a + 0xfffu + ((a >> 13) & 1u)) >> 13) - (112u << 10)));
}

// Saturates at 448, the largest e4m3 number; NaN stays NaN.
static inline fp8_t round_to_fp8(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<fp8_t>(sign | 0x7fu);
  if (a >= 0x43e80000u) return static_cast<fp8_t>(sign | 0x7eu);  // 464, the tie above 448
  if (a < 0x3c800000u) {  // below 2^-6: the addition rounds to multiples of 2^-9
    return static_cast<fp8_t>(sign | (float_bits(bits_float(a) + 16384.0f) - 0x46800000u));
  }
  return static_cast<fp8_t>(sign | (((a + 0x7ffffu + ((a >> 20) & 1u)) >> 20) - (120u << 3)));
}

// Saturates at 57344, the largest finite e5m2 number, infinity included; NaN stays NaN.
static inline e5m2_t round_to_e5m2(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<e5m2_t>(sign | 0x7fu);
  if (a >= 0x47600000u) return static_cast<e5m2_t>(sign | 0x7bu);
  if (a < 0x38800000u) {  // below 2^-14: the addition rounds to multiples of 2^-16
    return static_cast<e5m2_t>(sign | (float_bits(bits_float(a) + 128.0f) - 0x43000000u));
  }
  return static_cast<e5m2_t>(sign | (((a + 0xfffffu + ((a >> 21) & 1u)) >> 21) - (112u << 2)));
}

// To the nearest integer, ties to even, saturating at -127 and 127; NaN has no code.
static inline int8_t round_to_int8(float x) {
  const float most = x < 127.0f ? x : 127.0f;
  const float held = most > -127.0f ? most : -127.0f;
  return static_cast<int8_t>(float_bits(held + 12582912.0f) - 0x4b400000u);
}

template <class T>
static inline T round_to(float x);
template <>
inline float round_to<float>(float x) {
  return x;
}
template <>
inline bf16_t round_to<bf16_t>(float x) {
  return round_to_bf16(x);
}
template <>
inline fp16_t round_to<fp16_t>(float x) {
  return round_to_fp16(x);
}

}  // namespace cpu_backend

// Elementary functions on Vec, written once for every target.
//
// Polynomials and ranges are those of the Cephes library (S. Moshier, single precision), that of
// erfc apart; the error bounds are what tests/kernels/test_math.cpp measures over the whole domain.
#pragma once

#include "isa/vec.h"

namespace CPU_BACKEND_NAMESPACE {

template <int kTerms>
CPU_BACKEND_INLINE Vec polynomial(Vec x, const float (&coefficients)[kTerms]) {
  Vec y = broadcast(coefficients[0]);
  for (int i = 1; i < kTerms; ++i) y = y * x + coefficients[i];
  return y;
}

// e^x; 0 below -87.3 (no subnormal results), inf above 88.7.  At most 1 ulp.
CPU_BACKEND_INLINE Vec exp(Vec x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec clamped = min(max(x, broadcast(-88.0f)), broadcast(89.0f));
  const Vec shifted = clamped * kLog2e + kRound;
  const Vec n = shifted - kRound;
  const Vec r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  static constexpr float kP[] = {1.9875691500E-4f, 1.3981999507E-3f, 8.3334519073E-3f,
                                 4.1665795894E-2f, 1.6666665459E-1f, 5.0000001201E-1f};
  const Vec y = polynomial(r, kP) * (r * r) + r + 1.0f;
  // 2^n in two factors: n = 128 (x near 88.7) is outside the range of one exponent field.
  const VecI k = (VecI)(as_bits(shifted) - 0x4b400000u);
  const VecI half = k >> 1;
  const Vec scale_a = (Vec)((half + 127) << 23);
  const Vec scale_b = (Vec)((k - half + 127) << 23);
  Vec result = y * scale_a * scale_b;
  result = select(x < -87.33654f, Vec{}, result);
  return select(x != x, x, result);
}

// e^x for x <= 0, the same bits as exp(x): what softmax asks for, at half the price.
CPU_BACKEND_INLINE Vec exp_nonpositive(Vec x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kRound = 12582912.0f;
  const Vec shifted = x * kLog2e + kRound;
  const Vec n = shifted - kRound;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  static constexpr float kP[] = {1.9875691500E-4f, 1.3981999507E-3f, 8.3334519073E-3f,
                                 4.1665795894E-2f, 1.6666665459E-1f, 5.0000001201E-1f};
  const Vec y = polynomial(r, kP) * (r * r) + r + 1.0f;
  // 2^n with n in [-126, 0]; below, whatever came out is replaced, and NaN passes through.
  const Vec scale = (Vec)((as_bits(shifted) - (0x4b400000u - 127u)) << 23);
  return select(x < -87.33654f, Vec{}, y * scale);
}

// 2^x for x <= 127, to 3e-6, a thousandth of a bf16 number's last bit: for results rounded to bf16
// or to 16-bit integers.
// 0 below -126.
CPU_BACKEND_INLINE Vec exp2_for_bf16(Vec x) {
  constexpr float kRound = 12582912.0f;
  const Vec shifted = x + kRound;
  // Minimax in relative error for x less its nearest integer.
  static constexpr float kP[] = {9.5701003e-3f, 5.5917859e-2f, 2.4024745e-1f, 6.9312179e-1f,
                                 9.9999928e-1f};
  const Vec y = polynomial(x - (shifted - kRound), kP);
  const Vec scale = (Vec)((as_bits(shifted) - (0x4b400000u - 127u)) << 23);
  return select(x < -126.0f, Vec{}, y * scale);
}

// At most 2.5 ulp above -87.3; 0 below -88.7, where exp(-x) is infinite.
CPU_BACKEND_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// The same for what is rounded to 16 bits, to 1e-5; 0 below -87.  x is a number.
CPU_BACKEND_INLINE Vec sigmoid_for_16_bits(Vec x) {
  constexpr float kLog2e = 1.44269504088896341f;
  const Vec y = 1.0f + exp2_for_bf16(min(x * -kLog2e, broadcast(126.0f)));
  return select(x < -87.0f, Vec{}, reciprocal(y));
}

// At most 1.5 ulp.
CPU_BACKEND_INLINE Vec tanh(Vec x) {
  const Vec a = abs(x);
  static constexpr float kP[] = {-5.70498872745E-3f, 2.06390887954E-2f, -5.37397155531E-2f,
                                 1.33314422036E-1f, -3.33332819422E-1f};
  const Vec square = x * x;
  const Vec small = polynomial(square, kP) * square * x + x;
  const Vec large = 1.0f - 2.0f / (exp(a + a) + 1.0f);
  const Vec signed_large = from_bits(as_bits(large) | (as_bits(x) & 0x80000000u));
  const Vec y = select(a < 0.625f, small, signed_large);
  return select(x != x, x, y);
}

// 1 - erf(x), as e^-x^2 times a polynomial in 1 / (1 + 0.4 |x|), minimax in relative error
// (7e-9) up to |x| = 9.4.  At most 9 ulp up to x = 1.  Above it the rounding of x * x becomes a
// relative error: 70 ulp (6e-6) at x = 9, beyond which the result is below 1e-36.
CPU_BACKEND_INLINE Vec erfc(Vec x) {
  static constexpr float kP[] = {-0.0308008157f, 0.2046009f,   -0.51439631f, 0.568360984f,
                                 -0.301904738f,  0.281562001f, 0.126364633f, 0.215637341f,
                                 0.224864513f,   0.22571148f};
  const Vec a = abs(x);
  const Vec t = 1.0f / (a * 0.4f + 1.0f);
  const Vec tail = exp_nonpositive(a * -a) * (t * polynomial(t, kP));
  return select(x < 0.0f, 2.0f - tail, tail);
}

// What of the standard normal distribution lies beyond a >= 0, erfc(a / sqrt(2)) / 2, for what is
// rounded to 16 bits: its logarithm as a polynomial, minimax (2.3e-5).  To 2.5e-5 up to a = 6 and
// 7e-5 up to 12.9, where rounding the exponent counts; 0 from 12.95 to 13.5, where its domain ends.
CPU_BACKEND_INLINE Vec normal_tail_for_16_bits(Vec a) {
  static constexpr float kP[] = {-1.85861138e-9f, 1.36686097e-7f, -4.41740076e-6f, 8.30309946e-5f,
                                 -1.01623731e-3f, 8.64594802e-3f, -5.39039150e-2f, -0.458858043f,
                                 -1.15094864f,    -1.00003266f};
  return exp2_for_bf16(polynomial(a, kP));
}

// Natural logarithm of positive normal numbers.  At most 1 ulp.
CPU_BACKEND_INLINE Vec log(Vec x) {
  VecU u = as_bits(x);
  VecI e = (VecI)(u >> 23) - 126;
  Vec m = from_bits((u & 0x007fffffu) | 0x3f000000u);  // [0.5, 1)
  const VecI low = m < 0.707106781186547524f;
  e = e + low;  // all-ones is -1
  m = m - 1.0f + select(low, m, Vec{});
  static constexpr float kP[] = {7.0376836292E-2f,  -1.1514610310E-1f, 1.1676998740E-1f,
                                 -1.2420140846E-1f, 1.4249322787E-1f,  -1.6668057665E-1f,
                                 2.0000714765E-1f,  -2.4999993993E-1f, 3.3333331174E-1f};
  const Vec square = m * m;
  const Vec n = __builtin_convertvector(e, Vec);
  Vec y = polynomial(m, kP) * m * square;
  y = y + n * -2.12194440e-4f - 0.5f * square;
  return m + y + n * 0.693359375f;
}

// log(1 + e^x).  At most 4 ulp above -87.3; 0 below.  What 1 + e^x loses in rounding is put back by
// the ratio of e^x to what is left of it (Kahan).
CPU_BACKEND_INLINE Vec softplus(Vec x) {
  const Vec y = exp(-abs(x));
  const Vec sum = 1.0f + y;
  const Vec rest = sum - 1.0f;
  const Vec small = select(rest == 0.0f, y, log(sum) * (y / select(rest == 0.0f, sum, rest)));
  return select(x != x, x, max(x, Vec{}) + small);
}

}  // namespace CPU_BACKEND_NAMESPACE

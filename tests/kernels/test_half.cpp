// The scalar conversions of isa/half.h, against arithmetic on doubles.
#include "harness.h"

namespace cpu_backend::test {
namespace {

// Value of a 16-bit float with the given field widths, by definition.
double value_of(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const double sign = bits >> 15 ? -1.0 : 1.0;
  const uint32_t exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1u << exponent_bits) - 1) return mantissa ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << mantissa_bits),
                           static_cast<int>(exponent) - bias - mantissa_bits);
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

void test_half_widens_every_value() {
  for (uint32_t u = 0; u < 65536; ++u) {
    const float bf16 = to_float(static_cast<bf16_t>(u));
    const float fp16 = to_float(static_cast<fp16_t>(u));
    expect(same(bf16, value_of(u, 8, 7)), "bf16 %04x widens to %a", u, bf16);
    expect(same(fp16, value_of(u, 5, 10)), "fp16 %04x widens to %a", u, fp16);
  }
}
const Registration a("half/test_half_widens_every_value", test_half_widens_every_value);

// Between two neighbours a and b = a + 1 ulp: everything below the middle rounds to a, above to b,
// the middle itself to the one with an even last bit.
template <class Half, Half (*kRound)(float)>
void check_rounding(const char* name, uint32_t last_finite) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t u = 0; u < last_finite; ++u) {
      const double low = to_float(static_cast<Half>(u));
      const double high = to_float(static_cast<Half>(u + 1));
      const float middle = static_cast<float>(0.5 * (low + high));
      const float flip = sign ? -1.0f : 1.0f;
      const struct {
        float x;
        uint32_t expected;
      } cases[] = {{static_cast<float>(low), u},
                   {std::nextafter(middle, 0.0f), u},
                   {middle, u + (u & 1)},
                   {std::nextafter(middle, HUGE_VALF), u + 1}};
      for (const auto& c : cases) {
        const uint32_t got = static_cast<uint32_t>(kRound(flip * c.x));
        expect(got == (c.expected | sign), "%s: %a rounds to %04x, expected %04x", name,
               static_cast<double>(flip * c.x), got, c.expected | sign);
      }
    }
  }
}

void test_half_rounds_to_nearest_even() {
  check_rounding<bf16_t, round_to_bf16>("bf16", 0x7f7f);
  check_rounding<fp16_t, round_to_fp16>("fp16", 0x7bff);
}
const Registration b("half/test_half_rounds_to_nearest_even", test_half_rounds_to_nearest_even);

void test_half_overflows_to_infinity_and_keeps_nan() {
  const struct {
    uint32_t fp32, bf16, fp16;
  } cases[] = {
      {0x7f800000, 0x7f80, 0x7c00},                                // inf
      {0xff800000, 0xff80, 0xfc00}, {0x7f7fffff, 0x7f80, 0x7c00},  // largest finite
      {0x7f7f7fff, 0x7f7f, 0x7c00},                                // just below bf16's last tie
      {0x477fefff, 0x4780, 0x7bff},                                // just below 65520
      {0x477ff000, 0x4780, 0x7c00},  // 65520: a tie whose even side is infinity
      {0x00000001, 0x0000, 0x0000},  // smallest subnormal
      {0x33000000, 0x3300, 0x0000},  // 2^-25: a tie, to zero
      {0x33000001, 0x3300, 0x0001},
  };
  for (const auto& c : cases) {
    const float x = bits_float(c.fp32);
    expect(static_cast<uint32_t>(round_to_bf16(x)) == c.bf16, "bf16 of %08x", c.fp32);
    expect(static_cast<uint32_t>(round_to_fp16(x)) == c.fp16, "fp16 of %08x", c.fp32);
  }
  // A payload in the low bits only would become infinity by plain truncation.
  for (uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float x = bits_float(nan);
    expect(std::isnan(to_float(round_to_bf16(x))), "bf16 of NaN %08x is a number", nan);
    expect(std::isnan(to_float(round_to_fp16(x))), "fp16 of NaN %08x is a number", nan);
  }
}
const Registration c("half/test_half_overflows_to_infinity_and_keeps_nan",
                     test_half_overflows_to_infinity_and_keeps_nan);

}  // namespace
}  // namespace cpu_backend::test

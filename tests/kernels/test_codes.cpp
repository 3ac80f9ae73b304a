// The 8-bit formats: scalar conversions of isa/half.h against their definition, and the vector ones
// of isa/codes.h against the scalar ones.
#include "harness.h"
#include "probe.h"

namespace cpu_backend::test {
namespace {

struct Format {
  const char* name;
  int mantissa_bits, bias;
  double largest;
  uint32_t largest_code;
  float (*widen)(uint32_t);
  uint32_t (*round)(float);
};

template <class Code>
float widen(uint32_t code) {
  return to_float(static_cast<Code>(code));
}

const Format kFormats[] = {
    {"e4m3", 3, 7, 448.0, 0x7e, widen<fp8_t>,
     [](float x) { return static_cast<uint32_t>(round_to_fp8(x)); }},
    {"e5m2", 2, 15, 57344.0, 0x7b, widen<e5m2_t>,
     [](float x) { return static_cast<uint32_t>(round_to_e5m2(x)); }},
};

double value_of(const Format& format, uint32_t code) {
  const double sign = code & 0x80 ? -1.0 : 1.0;
  const int exponent = static_cast<int>((code & 0x7f) >> format.mantissa_bits);
  const int mantissa = static_cast<int>(code & ((1u << format.mantissa_bits) - 1));
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits),
                           exponent - format.bias - format.mantissa_bits);
}

bool same(double a, double b) {
  return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

void test_codes_widen_every_number() {
  for (const Format& format : kFormats) {
    for (uint32_t code = 0; code < 256; ++code) {
      const double value = static_cast<double>(format.widen(code));
      if ((code & 0x7f) <= format.largest_code) {
        expect(same(value, value_of(format, code)), "%s %02x is %a", format.name, code, value);
      } else {  // e4m3 has one NaN; e5m2 has infinity, then NaN
        const bool infinite = format.largest_code == 0x7b && (code & 0x7f) == 0x7c;
        expect(infinite ? std::isinf(value) : std::isnan(value), "%s %02x is %a", format.name, code,
               value);
      }
    }
  }
}
const Registration a("codes/test_codes_widen_every_number", test_codes_widen_every_number);

struct Rounded {
  float x;
  uint32_t code;
};

// Every number, the ties between neighbours and what lies beside the ties; then what saturates.
std::vector<Rounded> rounding_of(const Format& format) {
  std::vector<Rounded> all;
  for (uint32_t sign : {0u, 0x80u}) {
    const float flip = sign ? -1.0f : 1.0f;
    for (uint32_t u = 0; u < format.largest_code; ++u) {
      const double low = value_of(format, u);
      const double high = value_of(format, u + 1);
      const float middle = static_cast<float>(0.5 * (low + high));
      all.push_back({flip * static_cast<float>(low), u | sign});
      all.push_back({flip * std::nextafter(middle, 0.0f), u | sign});
      all.push_back({flip * middle, (u + (u & 1)) | sign});
      all.push_back({flip * std::nextafter(middle, HUGE_VALF), (u + 1) | sign});
    }
    const float largest = static_cast<float>(format.largest);
    for (float x : {largest, std::nextafter(largest, HUGE_VALF), largest * 1.0625f,
                    largest * 1.125f, largest * 2.0f, 3e38f, HUGE_VALF})
      all.push_back({flip * x, format.largest_code | sign});
    for (float x : {1e-45f, 1e-38f, 1e-20f}) all.push_back({flip * x, sign});
    for (uint32_t nan : {0x7fc00000u, 0x7fffffffu})
      all.push_back({bits_float(nan | sign << 24), 0x7fu | sign});
  }
  return all;
}

void test_codes_round_to_nearest_even_and_saturate() {
  for (const Format& format : kFormats)
    for (const Rounded& c : rounding_of(format))
      expect(format.round(c.x) == c.code, "%s: %a rounds to %02x, expected %02x", format.name,
             static_cast<double>(c.x), format.round(c.x), c.code);
  const struct {
    float x;
    int code;
  } cases[] = {{0.5f, 0},      {1.5f, 2},     {-0.5f, 0},      {-2.5f, -2},     {126.5f, 126},
               {126.75f, 127}, {127.5f, 127}, {-127.5f, -127}, {-128.0f, -127}, {1e30f, 127},
               {-1e30f, -127}, {3.49f, 3},    {HUGE_VALF, 127}};
  for (const auto& c : cases)
    expect(round_to_int8(c.x) == c.code, "int8: %g rounds to %d", static_cast<double>(c.x),
           round_to_int8(c.x));
}
const Registration b("codes/test_codes_round_to_nearest_even_and_saturate",
                     test_codes_round_to_nearest_even_and_saturate);

void check_widening(const char* name, const Probe& probe, const Probe::Codes& codes,
                    float (*definition)(uint32_t)) {
  unsigned char bytes[512];
  for (int i = 0; i < 512; ++i) bytes[i] = static_cast<unsigned char>(i % 256 + i / 256);
  std::vector<float> y(512), second(256);
  codes.widen(bytes, y.data(), 512);
  for (int i = 0; i < 512; ++i) {
    const double expected = static_cast<double>(definition(bytes[i]));
    expect(same(static_cast<double>(y[static_cast<size_t>(i)]), expected), "%s: %s %02x is %a",
           probe.target, name, bytes[i], static_cast<double>(y[static_cast<size_t>(i)]));
  }
  for (const auto widen_pairs : {codes.widen_pairs, codes.widen_bf16_pairs}) {
    if (!widen_pairs) continue;
    widen_pairs(bytes, y.data(), second.data(), 256);
    for (int i = 0; i < 512; ++i) {
      const float got = i % 2 ? second[static_cast<size_t>(i / 2)] : y[static_cast<size_t>(i / 2)];
      expect(same(static_cast<double>(got), static_cast<double>(definition(bytes[i]))),
             "%s: %s %02x of a pair is %a", probe.target, name, bytes[i], static_cast<double>(got));
    }
  }
}

void check_narrowing(const char* name, const Probe& probe, const Probe::Codes& codes,
                     std::vector<float> x, uint32_t (*definition)(float)) {
  while (x.size() % static_cast<size_t>(probe.lanes)) x.push_back(0.0f);
  Random random(7);
  for (int64_t i = 0; i < reps(4096); ++i)
    x.push_back(
        static_cast<float>(std::ldexp(random.uniform(-1.0, 1.0), static_cast<int>(i) % 40 - 20)));
  x.resize(x.size() / 16 * 16);
  std::vector<unsigned char> y(x.size());
  codes.narrow(x.data(), y.data(), static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i)
    expect(y[i] == definition(x[i]), "%s: %s of %a is %02x, expected %02x", probe.target, name,
           static_cast<double>(x[i]), y[i], definition(x[i]));
}

void test_codes_of_vectors_are_those_of_scalars() {
  for_each_target([](const KernelTable& table) {
    const Probe& probe = probe_of(table.target);
    check_widening("e4m3", probe, probe.e4m3, [](uint32_t code) {
      const bool nan = (code & 0x7f) == 0x7f;  // comes out as if it were one more number
      return nan ? (code & 0x80 ? -480.0f : 480.0f) : widen<fp8_t>(code);
    });
    check_widening("e5m2", probe, probe.e5m2, widen<e5m2_t>);
    for (const Format& format : kFormats) {
      std::vector<float> x;
      for (const Rounded& c : rounding_of(format)) x.push_back(c.x);
      check_narrowing(format.name, probe, &format == kFormats ? probe.e4m3 : probe.e5m2, x,
                      format.round);
    }
    std::vector<float> x;
    for (int i = -2200; i < 2200; ++i) x.push_back(static_cast<float>(i) / 16.0f);
    check_narrowing("int8", probe, probe.int8, x, [](float v) {
      return static_cast<uint32_t>(static_cast<uint8_t>(round_to_int8(v)));
    });
  });
}
const Registration c("codes/test_codes_of_vectors_are_those_of_scalars",
                     test_codes_of_vectors_are_those_of_scalars);

}  // namespace
}  // namespace cpu_backend::test

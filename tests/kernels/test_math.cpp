// The elementary functions of isa/math.h on every target, against the C library in double.
//
// The bounds here are those that the comments of isa/math.h state; CPU_BACKEND_SHOW_ERRORS=1
// prints what is measured.
#include <cstdlib>

#include "harness.h"
#include "probe.h"

namespace cpu_backend::test {
namespace {

using Map = void (*)(const float*, float*, int64_t);

// Distance between fp32 neighbours at |x|.
double ulp(double x) {
  int exponent;
  std::frexp(x, &exponent);
  return std::ldexp(1.0, std::max(exponent, -125) - 24);
}

// Values in [low, high]: evenly spaced ones and, for the many scales near zero, fp32 patterns.
std::vector<float> domain(float low, float high) {
  std::vector<float> x = {low, high};
  const int64_t count = reps(400000);
  for (int64_t i = 0; i < count; ++i)
    x.push_back(static_cast<float>(low + (static_cast<double>(high) - low) * (i + 0.5) / count));
  const uint32_t step = kEmulated ? 1000003 : 10007;
  for (uint64_t u = 0; u < 0x7f800000u; u += step)
    for (float y : {bits_float(static_cast<uint32_t>(u)), -bits_float(static_cast<uint32_t>(u))})
      if (y >= low && y <= high && (y == 0.0f || std::fabs(y) >= 0x1p-126f)) x.push_back(y);
  return x;
}

struct Range {
  const char* name;
  Map Probe::* function;
  double (*exact)(double);
  float low, high;
  double max_ulp;
};

double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double exact_exp(double x) { return std::exp(x); }
double exact_tanh(double x) { return std::tanh(x); }
double exact_erfc(double x) { return std::erfc(x); }
double exact_normal_tail(double x) { return 0.5 * std::erfc(x / std::sqrt(2.0)); }
double exact_log(double x) { return std::log(x); }

const Range kRanges[] = {
    {"exp", &Probe::exp, exact_exp, -87.3f, 88.72f, 1.0},
    {"sigmoid", &Probe::sigmoid, exact_sigmoid, -87.3f, 100.0f, 2.5},
    {"sigmoid for 16 bits", &Probe::sigmoid_for_16_bits, exact_sigmoid, -87.0f, 100.0f, 100.0},
    {"tanh", &Probe::tanh, exact_tanh, -100.0f, 100.0f, 1.5},
    {"erfc below 1", &Probe::erfc, exact_erfc, -100.0f, 1.0f, 9.0},
    {"erfc above 1", &Probe::erfc, exact_erfc, 1.0f, 9.0f, 70.0},
    {"normal tail up to 6", &Probe::normal_tail_for_16_bits, exact_normal_tail, 0.0f, 6.0f, 440.0},
    {"normal tail", &Probe::normal_tail_for_16_bits, exact_normal_tail, 6.0f, 12.9f, 1200.0},
    {"log", &Probe::log, exact_log, 0x1p-126f, 3.4e38f, 1.0},
    {"log near 1", &Probe::log, exact_log, 0.5f, 2.0f, 1.0},
};

void test_math_keeps_its_bounds() {
  const bool show = getenv("CPU_BACKEND_SHOW_ERRORS") != nullptr;
  for (const Range& range : kRanges) {
    const std::vector<float> x = domain(range.low, range.high);
    std::vector<double> expected;
    for (float value : x) expected.push_back(range.exact(value));
    for_each_target([&](const KernelTable& table) {
      std::vector<float> y(x.size());
      (probe_of(table.target).*range.function)(x.data(), y.data(), static_cast<int64_t>(x.size()));
      double worst = 0.0;
      size_t at = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = std::fabs(y[i] - expected[i]) / ulp(expected[i]);
        if (!(error <= worst)) {
          worst = error;
          at = i;
          if (error != error) break;
        }
      }
      if (show)
        printf("    %-14s %-8s %.2f ulp at %.9g\n", range.name, table.target, worst,
               static_cast<double>(x[at]));
      expect(worst <= range.max_ulp, "%s(%.9g) = %.9g, expected %.9g: %.2f ulp, allowed %.2f",
             range.name, static_cast<double>(x[at]), static_cast<double>(y[at]), expected[at],
             worst, range.max_ulp);
    });
  }
}
const Registration a("math/test_math_keeps_its_bounds", test_math_keeps_its_bounds);

void test_math_special_values() {
  const float inf = HUGE_VALF;
  const float nan = std::nanf("");
  const struct {
    const char* name;
    Map Probe::* function;
    float x, y;
  } cases[] = {
      {"exp", &Probe::exp, -inf, 0.0f},
      {"exp", &Probe::exp, -87.34f, 0.0f},
      {"exp", &Probe::exp, 88.73f, inf},
      {"exp", &Probe::exp, inf, inf},
      {"exp", &Probe::exp, 0.0f, 1.0f},
      {"exp", &Probe::exp, -3e38f, 0.0f},
      {"exp", &Probe::exp, nan, nan},
      {"tanh", &Probe::tanh, inf, 1.0f},
      {"tanh", &Probe::tanh, -inf, -1.0f},
      {"tanh", &Probe::tanh, 0.0f, 0.0f},
      {"tanh", &Probe::tanh, nan, nan},
      {"sigmoid", &Probe::sigmoid, inf, 1.0f},
      {"sigmoid", &Probe::sigmoid, -inf, 0.0f},
      {"sigmoid", &Probe::sigmoid, nan, nan},
      {"for 16 bits", &Probe::sigmoid_for_16_bits, -inf, 0.0f},
      {"for 16 bits", &Probe::sigmoid_for_16_bits, -3e38f, 0.0f},
      {"for 16 bits", &Probe::sigmoid_for_16_bits, inf, 1.0f},
      {"erfc", &Probe::erfc, inf, 0.0f},
      {"erfc", &Probe::erfc, -inf, 2.0f},
      {"erfc", &Probe::erfc, 0.0f, 1.0f},
      {"erfc", &Probe::erfc, nan, nan},
      {"normal tail", &Probe::normal_tail_for_16_bits, 13.5f, 0.0f},
      {"log", &Probe::log, 1.0f, 0.0f},
  };
  for_each_target([&](const KernelTable& table) {
    const Probe& probe = probe_of(table.target);
    for (const auto& c : cases) {
      for (int64_t n : {int64_t{1}, int64_t{probe.lanes}}) {  // tail and full vector
        std::vector<float> x(static_cast<size_t>(n), c.x), y(static_cast<size_t>(n));
        (probe.*c.function)(x.data(), y.data(), n);
        for (float got : y)
          expect(got == c.y || (c.y != c.y && got != got), "%s(%g) = %g, expected %g", c.name,
                 static_cast<double>(c.x), static_cast<double>(got), static_cast<double>(c.y));
      }
    }
  });
}
const Registration b("math/test_math_special_values", test_math_special_values);

void test_exp_nonpositive_is_exp() {
  std::vector<float> x = domain(-90.0f, 0.0f);
  for (float special : {-HUGE_VALF, -3e38f, -1e9f, -0.0f, std::nanf("")}) x.push_back(special);
  for_each_target([&](const KernelTable& table) {
    const Probe& probe = probe_of(table.target);
    std::vector<float> y(x.size()), expected(x.size());
    probe.exp_nonpositive(x.data(), y.data(), static_cast<int64_t>(x.size()));
    probe.exp(x.data(), expected.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i)
      if (!expect(float_bits(y[i]) == float_bits(expected[i]) || (y[i] != y[i] && x[i] != x[i]),
                  "of %.9g: %.9g, exp gives %.9g", static_cast<double>(x[i]),
                  static_cast<double>(y[i]), static_cast<double>(expected[i])))
        return;
  });
}
const Registration c("math/test_exp_nonpositive_is_exp", test_exp_nonpositive_is_exp);

void test_exp2_for_bf16() {
  std::vector<float> x = domain(-126.0f, 127.0f);
  for (float special : {-HUGE_VALF, -3e38f, -126.5f, -0.0f, std::nanf("")}) x.push_back(special);
  for_each_target([&](const KernelTable& table) {
    const Probe& probe = probe_of(table.target);
    std::vector<float> y(x.size());
    probe.exp2_for_bf16(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = x[i] < -126.0f ? 0.0 : std::exp2(static_cast<double>(x[i]));
      const bool right = std::abs(static_cast<double>(y[i]) - exact) <= 3e-6 * exact;
      if (!expect(right || (x[i] != x[i] && y[i] != y[i]), "of %.9g: %.9g instead of %.9g",
                  static_cast<double>(x[i]), static_cast<double>(y[i]), exact))
        return;
    }
  });
}
const Registration d("math/test_exp2_for_bf16", test_exp2_for_bf16);

}  // namespace
}  // namespace cpu_backend::test

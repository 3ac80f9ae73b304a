// Quantization of weights by the definition in kernels/quant_weight.h, in doubles.
#include <algorithm>
#include <vector>

#include "harness.h"

namespace cpu_backend::test {
namespace {

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, offsets;
  std::vector<double> squares;
};

// Weights with a different range in every group, and one group of equal numbers.
std::vector<float> make_weight(int64_t rows, int64_t size, int64_t group) {
  std::vector<float> weight(static_cast<size_t>(rows * size));
  uint32_t state = 1;
  for (int64_t i = 0; i < rows * size; ++i) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    const int64_t g = i % size / group;
    weight[static_cast<size_t>(i)] =
        g == 1 ? 0.25f : unit * std::ldexp(1.0f, static_cast<int>(g % 7) - 3) + 0.1f;
  }
  return weight;
}

Quantized quantize(const KernelTable& table, const std::vector<float>& weight, int64_t rows,
                   int64_t size, int bits, int64_t group) {
  const auto count = static_cast<size_t>(rows * ceil_div(size, group));
  Quantized result{std::vector<uint8_t>(weight.size(), 0xee), std::vector<uint16_t>(count),
                   std::vector<uint16_t>(count),
                   std::vector<double>(2 * static_cast<size_t>(rows))};
  QuantWeightArgs args{};
  args.bits = bits;
  args.group = group;
  args.x = weight.data();
  args.x_stride = size;
  args.size = size;
  args.codes = result.codes.data();
  args.scales = result.scales.data();
  args.offsets = result.offsets.data();
  args.squares = result.squares.data();
  // One row by itself, then the others: rows do not depend on each other.
  table.quantize_weight(DType::kFloat32, args, {0, 1});
  table.quantize_weight(DType::kFloat32, args, {1, rows});
  return result;
}

template <class F>
void for_each_case(F check) {
  for_each_target([&](const KernelTable& table) {
    for (int64_t group : {1, 5, 16, 32, 100, 128, 256})
      for (int64_t size : {group, 2 * group, 2 * group + 3})
        check(table, make_weight(3, size, group), 3, size, group);
  });
}

double as_double(uint16_t half) { return static_cast<double>(to_float(static_cast<fp16_t>(half))); }

void test_codes_of_8_bits_are_nearest_to_the_weight() {
  for_each_case([](const KernelTable& table, const std::vector<float>& weight, int64_t rows,
                   int64_t size, int64_t group) {
    const Quantized q = quantize(table, weight, rows, size, 8, group);
    for (int64_t i = 0; i < rows * size; ++i) {
      const auto g = static_cast<size_t>(i / size * ceil_div(size, group) + i % size / group);
      const double scale = as_double(q.scales[g]);
      const double x = static_cast<double>(weight[static_cast<size_t>(i)]);
      const int code = q.codes[static_cast<size_t>(i)];
      // The scale is rounded to fp16, so the largest value may lie beyond 127 steps.
      expect(code >= 1 && std::abs(scale * (code - 128) - x) <= scale * (0.5 + 127 * 0x1p-10),
             "%s: group of %lld, element %lld: %g as %d steps of %g", table.target,
             static_cast<long long>(group), static_cast<long long>(i), x, code - 128, scale);
    }
  });
}
const Registration a("quant_weight/test_codes_of_8_bits_are_nearest_to_the_weight",
                     test_codes_of_8_bits_are_nearest_to_the_weight);

// Squared error of a group rounded to 16 levels from its least to its greatest number.
double plain_error(const float* x, int64_t size) {
  const double low = static_cast<double>(*std::min_element(x, x + size));
  const double step = (static_cast<double>(*std::max_element(x, x + size)) - low) / 15;
  double error = 0;
  for (int64_t i = 0; i < size && step > 0; ++i) {
    const double v = static_cast<double>(x[i]);
    const double d = std::nearbyint((v - low) / step) * step + low - v;
    error += d * d;
  }
  return error;
}

void test_codes_of_4_bits_lose_what_is_said_and_less_than_plain_rounding() {
  for_each_case([](const KernelTable& table, const std::vector<float>& weight, int64_t rows,
                   int64_t size, int64_t group) {
    const Quantized q = quantize(table, weight, rows, size, 4, group);
    const int64_t groups = ceil_div(size, group);
    for (int64_t r = 0; r < rows; ++r) {
      double lost = 0;
      double all = 0;
      double plain = 0;
      double rounding = 0;  // of scale and offset to fp16
      for (int64_t i = 0; i < size; ++i) {
        const auto g = static_cast<size_t>(r * groups + i / group);
        const double x = static_cast<double>(weight[static_cast<size_t>(r * size + i)]);
        const int code = q.codes[static_cast<size_t>(r * size + i)];
        expect(code <= 15, "%s: code %d", table.target, code);
        const double d = as_double(q.scales[g]) * code + as_double(q.offsets[g]) - x;
        const double ulps =
            (as_double(q.scales[g]) * 15 + std::abs(as_double(q.offsets[g]))) * 0x1p-10;
        lost += d * d;
        all += x * x;
        rounding += ulps * ulps;
        if (i % group == 0)
          plain +=
              plain_error(&weight[static_cast<size_t>(r * size + i)], std::min(group, size - i));
      }
      const double* said = &q.squares[2 * static_cast<size_t>(r)];
      expect(std::abs(said[0] - lost) <= 1e-3 * lost + 1e-6 * all, "%s: lost %g, said %g",
             table.target, lost, said[0]);
      expect(std::abs(said[1] - all) <= 1e-5 * all, "%s: all %g, said %g", table.target, all,
             said[1]);
      expect(lost <= 1.001 * plain + rounding, "%s: group of %lld lost %g, plain rounding %g",
             table.target, static_cast<long long>(group), lost, plain);
    }
  });
}
const Registration b(
    "quant_weight/test_codes_of_4_bits_lose_what_is_said_and_less_than_plain_rounding",
    test_codes_of_4_bits_lose_what_is_said_and_less_than_plain_rounding);

}  // namespace
}  // namespace cpu_backend::test

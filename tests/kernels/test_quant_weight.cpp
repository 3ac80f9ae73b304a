// Quantization of weights by the definition in kernels/quant_weight.h, in doubles.
#include <algorithm>
#include <vector>

#include "harness.h"

namespace cpu_backend::test {
namespace {

constexpr int64_t kPiece = QuantLayout::kLevelChannels;

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, levels;
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
  const auto pieces = static_cast<size_t>(rows * ceil_div(size, kPiece));
  Quantized result{std::vector<uint8_t>(weight.size(), 0xee), std::vector<uint16_t>(count),
                   std::vector<uint16_t>(pieces),
                   std::vector<double>(2 * static_cast<size_t>(rows))};
  QuantWeightArgs args{};
  args.bits = bits;
  args.group = group;
  args.x = weight.data();
  args.x_stride = size;
  args.size = size;
  args.codes = result.codes.data();
  args.scales = result.scales.data();
  args.levels = result.levels.data();
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

// What a piece of a group loses at most: the step that reaches both ends is tried, up to one unit
// wider than it need be, around a base that is off by half a unit; the scale, rounded to fp16, may
// cut the largest number by a fifteenth of a unit.  The base is then fitted to those codes, again
// to half a unit.
double most_error(const float* x, int64_t size, double unit) {
  const double low = static_cast<double>(*std::min_element(x, x + size));
  const double high = static_cast<double>(*std::max_element(x, x + size));
  const double step = std::max(1.0, std::ceil((high - low) / (15 * unit)));
  const double off = step / 2 + 0.5 + 0.07;
  return static_cast<double>(size) * unit * unit * (off * off + 0.25);
}

void test_codes_of_4_bits_lose_what_is_said_and_no_more_than_their_step() {
  for_each_case([](const KernelTable& table, const std::vector<float>& weight, int64_t rows,
                   int64_t size, int64_t group) {
    if (group != size && group % kPiece != 0) return;
    const Quantized q = quantize(table, weight, rows, size, 4, group);
    for (int64_t r = 0; r < rows; ++r) {
      double lost = 0;
      double all = 0;
      double most = 0;
      for (int64_t i = 0; i < size; ++i) {
        const float* x = &weight[static_cast<size_t>(r * size + i)];
        const int level = q.levels[static_cast<size_t>(r * ceil_div(size, kPiece) + i / kPiece)];
        const int step = level & 255;
        const int base = level >> 8;
        const int code = q.codes[static_cast<size_t>(r * size + i)];
        expect(code <= 15 && 15 * step + base <= 255, "%s: code %d, step %d, base %d", table.target,
               code, step, base);
        const double scale =
            as_double(q.scales[static_cast<size_t>(r * ceil_div(size, group) + i / group)]);
        const double d = scale * (step * code + base - 128) - static_cast<double>(*x);
        lost += d * d;
        all += static_cast<double>(*x) * static_cast<double>(*x);
        if (i % kPiece == 0) most += most_error(x, std::min(kPiece, size - i), scale);
      }
      const double* said = &q.squares[2 * static_cast<size_t>(r)];
      expect(std::abs(said[0] - lost) <= 1e-3 * lost + 1e-6 * all, "%s: lost %g, said %g",
             table.target, lost, said[0]);
      expect(std::abs(said[1] - all) <= 1e-5 * all, "%s: all %g, said %g", table.target, all,
             said[1]);
      expect(lost <= most, "%s: group of %lld lost %g, at most %g", table.target,
             static_cast<long long>(group), lost, most);
    }
  });
}
const Registration b(
    "quant_weight/test_codes_of_4_bits_lose_what_is_said_and_no_more_than_their_step",
    test_codes_of_4_bits_lose_what_is_said_and_no_more_than_their_step);

// Scales below the least normal fp16 number have fewer bits, but mean what they say.
void test_small_weights_keep_their_size() {
  for_each_target([](const KernelTable& table) {
    for (int bits : {4, 8}) {
      std::vector<float> weight = make_weight(3, 256, 128);
      for (float& x : weight) x *= 1e-3f;
      const Quantized q = quantize(table, weight, 3, 256, bits, 128);
      double lost = 0;
      double all = 0;
      for (int64_t i = 0; i < 3 * 256; ++i) {
        const double x = static_cast<double>(weight[static_cast<size_t>(i)]);
        const int code = q.codes[static_cast<size_t>(i)];
        const int level = q.levels[static_cast<size_t>(i / kPiece)];
        const int code8 = bits == 8 ? code : (level & 255) * code + (level >> 8);
        const double d = as_double(q.scales[static_cast<size_t>(i / 128)]) * (code8 - 128) - x;
        lost += d * d;
        all += x * x;
      }
      expect(lost <= 0.01 * all, "%s: %d bits lose %g of %g", table.target, bits, lost, all);
    }
  });
}
const Registration c("quant_weight/test_small_weights_keep_their_size",
                     test_small_weights_keep_their_size);

}  // namespace
}  // namespace cpu_backend::test

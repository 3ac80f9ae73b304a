// Top-k, top-p and min-p against a sort in double.
#include <numeric>

#include "harness.h"

namespace cpu_backend::test {
namespace {

struct Case {
  int64_t k;
  double p;
  double min_p;
};

TokenFilter filter_of(Case wanted) {
  return {wanted.k, static_cast<float>(wanted.p), static_cast<float>(wanted.min_p)};
}

// Per column, the softmax mass of what is strictly larger, among what min-p and top-k keep; -1: not
// kept; NaN: rounding decides.
std::vector<double> mass_above(const Buffer& x, int64_t k, double min_p) {
  const auto size = static_cast<size_t>(x.columns());
  std::vector<double> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = x.get(0, static_cast<int64_t>(i));
  std::vector<double> sorted = values;
  std::sort(sorted.rbegin(), sorted.rend());
  const double likely = min_p > 0.0 ? sorted[0] + std::log(min_p) : -HUGE_VAL;
  double least = k > 0 && k < x.columns() ? sorted[static_cast<size_t>(k - 1)] : -HUGE_VAL;
  least = std::max(least, likely);
  double total = 0.0;
  for (double v : values) total += v >= least ? std::exp(v - sorted[0]) : 0.0;
  std::vector<double> above(size, -1.0);
  for (size_t i = 0; i < size; ++i) {
    if (values[i] < least) continue;
    above[i] = 0.0;
    for (double v : sorted) above[i] += v > values[i] ? std::exp(v - sorted[0]) / total : 0.0;
  }
  for (size_t i = 0; i < size; ++i)
    if (std::fabs(values[i] - likely) < 1e-5) above[i] = std::nan("");
  return above;
}

void check_row(const KernelTable& table, Buffer& x, Case wanted, const std::string& label) {
  const std::vector<double> above = mass_above(x, wanted.k, wanted.min_p);
  Buffer before = x;
  std::vector<float> scratch(static_cast<size_t>(table.top_tokens_scratch(x.columns())));
  table.keep_top(static_cast<float*>(x.data()), x.columns(), filter_of(wanted), scratch.data());
  for (int64_t i = 0; i < x.columns(); ++i) {
    const double mass = above[static_cast<size_t>(i)];
    const bool kept = x.bits(0, i) == before.bits(0, i) && x.get(0, i) > -HUGE_VALF;
    expect(kept || x.get(0, i) == -HUGE_VALF, "%s: column %lld became %g", label.c_str(),
           static_cast<long long>(i), static_cast<double>(x.get(0, i)));
    // Where rounding of the mass decides, either is right; the largest value never falls.
    const bool open =
        std::isnan(mass) || (wanted.p < 1.0 && std::fabs(mass - wanted.p) < 1e-6 && mass > 0.0);
    const bool expected = mass >= 0.0 && (wanted.p >= 1.0 || mass == 0.0 || mass < wanted.p);
    if (!open && before.get(0, i) > -HUGE_VALF)
      expect(kept == expected, "%s: column %lld with %.9f above it was %s", label.c_str(),
             static_cast<long long>(i), mass, kept ? "kept" : "dropped");
  }
  x.check_guards(label);
}

const Case kCases[] = {
    {0, 0.9, 0.0},   {0, 0.5, 0.0},  {0, 1e-6, 0.0},  {0, 0.0, 0.0},      {0, 0.999999, 0.0},
    {1, 1.0, 0.0},   {2, 1.0, 0.0},  {40, 1.0, 0.0},  {5, 0.7, 0.0},      {40, 0.95, 0.0},
    {0, 1.0, 0.0},   {0, 1.0, 0.05}, {0, 1.0, 1.0},   {100000, 1.0, 0.0}, {0, 0.8, 0.3},
    {7, 1.0, 0.001}, {3, 0.9, 0.2},  {40, 0.95, 0.9},
};

// Rows shorter and longer than the groups whose maxima say where to look.
std::vector<int64_t> row_sizes() {
  std::vector<int64_t> sizes = odd_sizes();
  for (int64_t size : {255, 256, 257, 1000, 2049}) sizes.push_back(size);
  return sizes;
}

void test_keep_top_matches_a_sort() {
  for_each_target([](const KernelTable& table) {
    for (int64_t size : row_sizes()) {
      for (const Case& wanted : kCases) {
        for (double spread : {0.01, 3.0, 60.0}) {
          Random random(static_cast<uint64_t>(size));
          Buffer x(DType::kFloat32, 1, size);
          x.fill(random, -spread, spread);
          check_row(table, x, wanted,
                    format("size %lld k %lld p %g min-p %g spread %g", static_cast<long long>(size),
                           static_cast<long long>(wanted.k), wanted.p, wanted.min_p, spread));
        }
      }
    }
  });
}
const Registration a("top_tokens/test_keep_top_matches_a_sort", test_keep_top_matches_a_sort);

void test_ties_are_kept_together() {
  for_each_target([](const KernelTable& table) {
    for (const Case& wanted : kCases) {
      for (int64_t repeat = 0; repeat < reps(200); ++repeat) {
        Random random(static_cast<uint64_t>(repeat));
        Buffer x(DType::kFloat32, 1, 1 + random.below(90));
        // Few distinct values, both zeros and what a mask leaves behind among them.
        const double values[] = {0.0, -0.0, 1.5, -1.5, 0.25, -HUGE_VAL, 3.0, -40.0};
        x.set(0, 0, 0.25);
        for (int64_t i = 1; i < x.columns(); ++i) x.set(0, i, values[random.below(8)]);
        check_row(table, x, wanted,
                  format("ties %lld k %lld p %g min-p %g", static_cast<long long>(repeat),
                         static_cast<long long>(wanted.k), wanted.p, wanted.min_p));
      }
    }
  });
}
const Registration b("top_tokens/test_ties_are_kept_together", test_ties_are_kept_together);

void test_a_row_without_finite_values_is_left_alone() {
  for_each_target([](const KernelTable& table) {
    for (double filler : {-HUGE_VAL, std::nan("")}) {
      Buffer x(DType::kFloat32, 1, 37);
      for (int64_t i = 0; i < 37; ++i) x.set(0, i, filler);
      const Buffer before = x;
      std::vector<float> scratch(static_cast<size_t>(table.top_tokens_scratch(37)));
      table.keep_top(static_cast<float*>(x.data()), 37, {3, 0.5f, 0.1f}, scratch.data());
      expect(x == before, "a row of %g was changed", filler);
    }
  });
}
const Registration c("top_tokens/test_a_row_without_finite_values_is_left_alone",
                     test_a_row_without_finite_values_is_left_alone);

// sample_row is the draw among what keep_top leaves of the row after its division.
void test_sample_row_draws_from_what_is_kept() {
  for_each_target([](const KernelTable& table) {
    for (int64_t size : row_sizes()) {
      for (const Case& wanted : kCases) {
        for (float temperature : {0.0f, 0.3f, 1.0f, 2.5f}) {
          Random random(static_cast<uint64_t>(size));
          const uint64_t seed = random.bits();
          Buffer x(DType::kFloat32, 1, size);
          x.fill(random, -6.0, 6.0);
          x.set(0, size / 2, std::nan(""));
          Buffer kept = x;
          std::vector<float> scratch(static_cast<size_t>(table.top_tokens_scratch(size)));
          const int64_t got =
              table.sample_row(static_cast<float*>(x.data()), size,
                               {temperature, filter_of(wanted), seed}, scratch.data());
          int64_t expected = table.argmax_row(DType::kFloat32, kept.data(), size);
          if (temperature > 0.0f) {
            auto* logits = static_cast<float*>(kept.data());
            for (int64_t i = 0; i < size; ++i) logits[i] /= temperature;
            table.keep_top(logits, size, filter_of(wanted), scratch.data());
            expected = table.gumbel_argmax_row(DType::kFloat32, logits, size, seed);
          }
          expect(got == expected, "size %lld k %lld p %g min-p %g: %lld instead of %lld",
                 static_cast<long long>(size), static_cast<long long>(wanted.k), wanted.p,
                 wanted.min_p, static_cast<long long>(got), static_cast<long long>(expected));
          x.check_guards("sample_row");
        }
      }
    }
  });
}
const Registration d("top_tokens/test_sample_row_draws_from_what_is_kept",
                     test_sample_row_draws_from_what_is_kept);

}  // namespace
}  // namespace cpu_backend::test

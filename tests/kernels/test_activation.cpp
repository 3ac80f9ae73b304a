// Activations, plain and gated, with the active half first or second.
#include "harness.h"

namespace cpu_backend::test {
namespace {

constexpr Activation kKinds[] = {
    Activation::kSilu,    Activation::kGelu,      Activation::kGeluTanh,  Activation::kGeluQuick,
    Activation::kSigmoid, Activation::kSwigluOai, Activation::kSwigluStep};

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::kSwigluStep:
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Activation::kGeluTanh:
      return x / (1.0 + std::exp(-1.59576912160573071176 * (x + 0.044715 * x * x * x)));
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
    case Activation::kGeluQuick:
    case Activation::kSwigluOai:
      break;
  }
  return x / (1.0 + std::exp(-1.702 * x));
}

// The limits of gpt-oss and Step 3.5.
bool has_limits(Activation kind) {
  return kind == Activation::kSwigluOai || kind == Activation::kSwigluStep;
}
double limited_gate(Activation kind, double gate) {
  return kind == Activation::kSwigluOai ? std::min(gate, 7.0) : gate;
}
double limited_up(Activation kind, double up) {
  const double limited = has_limits(kind) ? std::min(std::max(up, -7.0), 7.0) : up;
  return kind == Activation::kSwigluOai ? limited + 1.0 : limited;
}
double activate_gate(Activation kind, double gate) {
  const double activated = activate(kind, gate);
  return kind == Activation::kSwigluStep ? std::min(activated, 7.0) : activated;
}

void check_case(const KernelTable& table, DType type, Activation kind, int64_t size, int mode) {
  constexpr int64_t kRows = 3;
  const bool gated = mode > 0;
  const bool second = mode > 1;
  const std::string label = format("%s kind %d size %lld mode %d", name_of(type),
                                   static_cast<int>(kind), static_cast<long long>(size), mode);
  Random random(static_cast<uint64_t>(31 + size));
  const int64_t columns = gated ? 2 * size : size;
  Buffer x(type, kRows, columns, columns + 3), y(type, kRows, size, size + 1);
  x.fill(random, -9.0, 9.0);
  x.set(1, 0, -60.0);  // saturated
  x.set(1, columns - 1, 60.0);
  ActivationArgs args{x.data(), x.stride(), y.data(), y.stride(), size, kind, gated, second};
  table.activation(type, args, {0, 2});
  Compare compare(type, label);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < size; ++i) {
      if (r == 2) {
        expect(y.untouched(r, i), "%s: wrote a row outside the slice", label.c_str());
        continue;
      }
      const double gate = limited_gate(kind, x.get(r, second ? size + i : i));
      const double up = gated ? limited_up(kind, x.get(r, second ? i : size + i)) : 1.0;
      // x * g with g in [0, 1] known to 2 ulp of fp32, and two roundings; the sigmoid is g alone.
      const double x_or_one = kind == Activation::kSigmoid ? 1.0 : gate;
      compare.add_bounded(y.get(r, i), activate_gate(kind, gate) * up,
                          4.0 * 0x1p-24 * std::fabs(x_or_one * up));
    }
  }
  compare.check();
  x.check_guards(label);
  y.check_guards(label);
}

void test_activation_matches_reference() {
  for_each_target([](const KernelTable& table) {
    for (DType type : kTypes)
      for (Activation kind : kKinds)
        for (int64_t size : odd_sizes())
          for (int mode = has_limits(kind) ? 1 : 0; mode < 3; ++mode)
            check_case(table, type, kind, size, mode);
  });
}
const Registration a("activation/test_activation_matches_reference",
                     test_activation_matches_reference);

// The negative tail keeps its relative accuracy.
void test_activation_tail_is_relative() {
  for_each_target([](const KernelTable& table) {
    for (Activation kind :
         {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kGeluQuick}) {
      constexpr int64_t kSize = 101;
      Buffer x(DType::kFloat32, 1, kSize), y(DType::kFloat32, 1, kSize);
      for (int64_t i = 0; i < kSize; ++i) x.set(0, i, -8.0 * static_cast<double>(i) / kSize);
      ActivationArgs args{x.data(), kSize, y.data(), kSize, kSize, kind, false, false};
      table.activation(DType::kFloat32, args, {0, 1});
      Compare compare(DType::kFloat32, format("kind %d", static_cast<int>(kind)));
      for (int64_t i = 0; i < kSize; ++i) {
        const double at = x.get(0, i);
        const double exact = activate(kind, at);
        // exp(t) turns the rounding of its argument t, at most x^2 / 2 or 1.702 x, into a relative
        // error of |t| units.
        const double t = std::max(at * at, 1.702 * std::fabs(at));
        compare.add_bounded(y.get(0, i), exact, std::fabs(exact) * (8.0 + 2.0 * t) * 0x1p-24);
      }
      compare.check();
    }
  });
}
const Registration b("activation/test_activation_tail_is_relative",
                     test_activation_tail_is_relative);

}  // namespace
}  // namespace cpu_backend::test

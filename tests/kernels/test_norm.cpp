// RMS norm and layer norm, alone and after a residual addition.
#include "harness.h"

namespace cpu_backend::test {
namespace {

enum class GateKind { kNone, kSiluBefore, kSiluAfter, kSigmoidBefore, kSigmoidAfter };

struct Case {
  DType type;
  int64_t hidden;
  bool residual, weight, in_place;
  GateKind gate = GateKind::kNone;
  bool lacks_one = false;

  bool gate_first() const {
    return gate == GateKind::kSiluBefore || gate == GateKind::kSigmoidBefore;
  }
  bool is_sigmoid() const {
    return gate == GateKind::kSigmoidBefore || gate == GateKind::kSigmoidAfter;
  }
};

// Row r of x through the norm of a case.
template <class Real>
std::vector<Real> norm_row(const Case& c, std::vector<Real> x, const Buffer& weight,
                           const Buffer& gate, int64_t r, Real epsilon) {
  const auto gated = [&](Real v, size_t i) {
    if (c.gate == GateKind::kNone) return v;
    const Real z = static_cast<Real>(gate.get(r, static_cast<int64_t>(i)));
    return v * (c.is_sigmoid() ? 1 : z) / (1 + std::exp(-z));
  };
  Real sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (c.gate_first()) x[i] = gated(x[i], i);
    sum += x[i] * x[i];
  }
  const Real scale = 1 / std::sqrt(sum / static_cast<Real>(x.size()) + epsilon);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] *= scale;
    if (c.weight)
      x[i] *= static_cast<Real>(weight.get(0, static_cast<int64_t>(i))) + (c.lacks_one ? 1 : 0);
    if (!c.gate_first()) x[i] = gated(x[i], i);
  }
  return x;
}

void check_case(const KernelTable& table, const Case& c, Random& random) {
  constexpr int64_t kRows = 4;
  constexpr float kEpsilon = 1e-5f;
  const std::string label =
      format("%s hidden %lld residual %d weight %d in place %d gate %d lacks one %d",
             name_of(c.type), static_cast<long long>(c.hidden), c.residual, c.weight, c.in_place,
             static_cast<int>(c.gate), c.lacks_one);
  Buffer x(c.type, kRows, c.hidden, c.hidden + 5), y(c.type, kRows, c.hidden, c.hidden + 3);
  Buffer residual(c.type, kRows, c.hidden, c.hidden + 7), weight(c.type, 1, c.hidden);
  Buffer gate(c.type, kRows, c.hidden, c.hidden + 9);
  x.fill(random, -2.0, 2.0);
  residual.fill(random, -2.0, 2.0);
  weight.fill(random, -1.5, 1.5);
  gate.fill(random, -4.0, 4.0);
  // The sum is rounded to the storage type before the norm: the reference starts from that.
  Buffer sum = residual;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t i = 0; i < c.hidden; ++i)
      sum.set(r, i, c.residual ? x.get(r, i) + residual.get(r, i) : x.get(r, i));
  const Buffer kept = residual;
  const Buffer before = x;
  Buffer& out = c.in_place ? x : y;

  NormArgs args{};
  args.x = x.data();
  args.x_stride = x.stride();
  args.residual = c.residual ? residual.data() : nullptr;
  args.residual_stride = residual.stride();
  args.weight = c.weight ? weight.data() : nullptr;
  args.y = out.data();
  args.y_stride = out.stride();
  args.hidden = c.hidden;
  args.epsilon = kEpsilon;
  args.weight_offset = c.lacks_one ? 1.0f : 0.0f;
  args.gate = c.gate == GateKind::kNone ? nullptr : gate.data();
  args.gate_stride = gate.stride();
  args.gate_activation = c.is_sigmoid() ? Activation::kSigmoid : Activation::kSilu;
  args.gate_first = c.gate_first();
  table.rms_norm(c.type, args, {1, 3});

  Compare compare(c.type, label);
  for (int64_t r = 0; r < kRows; ++r) {
    if (r < 1 || r >= 3) {  // rows of other slices
      for (int64_t i = 0; i < c.hidden; ++i) {
        expect(c.in_place ? out.bits(r, i) == before.bits(r, i) : out.untouched(r, i),
               "%s: row %lld is outside the slice but was written", label.c_str(),
               static_cast<long long>(r));
        expect(residual.bits(r, i) == kept.bits(r, i), "%s: residual row outside the slice",
               label.c_str());
      }
      continue;
    }
    std::vector<double> wide;
    std::vector<float> plain;
    for (int64_t i = 0; i < c.hidden; ++i) {
      wide.push_back(sum.get(r, i));
      plain.push_back(sum.get(r, i));
      if (c.residual)
        expect(residual.bits(r, i) == sum.bits(r, i), "%s: residual entry %lld", label.c_str(),
               static_cast<long long>(i));
    }
    wide = norm_row<double>(c, wide, weight, gate, r, static_cast<double>(kEpsilon));
    plain = norm_row<float>(c, plain, weight, gate, r, kEpsilon);
    for (size_t i = 0; i < wide.size(); ++i)
      compare.add(out.get(r, static_cast<int64_t>(i)), wide[i], plain[i]);
  }
  compare.check();
  for (const Buffer* buffer : {&x, &y, &residual, &weight, &gate}) buffer->check_guards(label);
}

void test_rms_norm_matches_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(21);
    for (DType type : kTypes)
      for (int64_t hidden : odd_sizes())
        for (int flags = 0; flags < 8; ++flags)
          check_case(table, {type, hidden, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0},
                     random);
  });
}
const Registration a("norm/test_rms_norm_matches_reference", test_rms_norm_matches_reference);

void test_gated_rms_norm_matches_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(23);
    for (DType type : kTypes)
      for (int64_t hidden : odd_sizes())
        for (int kind = 0; kind < 5; ++kind)
          for (int flags = 0; flags < 4; ++flags)
            check_case(table,
                       {type, hidden, false, true, (flags & 1) != 0, static_cast<GateKind>(kind),
                        (flags & 2) != 0},
                       random);
  });
}
const Registration d("norm/test_gated_rms_norm_matches_reference",
                     test_gated_rms_norm_matches_reference);

void test_rms_norm_keeps_rows_independent() {
  for_each_target([](const KernelTable& table) {
    for (DType type : kTypes) {
      Random random(22);
      constexpr int64_t kHidden = 77;
      Buffer x(type, 3, kHidden), y(type, 3, kHidden), alone(type, 3, kHidden);
      x.fill(random, -1.0, 1.0);
      x.set(1, 40, std::nan(""));  // must not leave its row
      NormArgs args{};
      args.x = x.data();
      args.x_stride = args.y_stride = args.hidden = kHidden;
      args.y = y.data();
      args.epsilon = 1e-6f;
      table.rms_norm(type, args, {0, 3});
      args.y = alone.data();
      for (int64_t r : {2, 0, 1}) table.rms_norm(type, args, {r, r + 1});
      for (int64_t r : {0, 2})
        for (int64_t i = 0; i < kHidden; ++i)
          expect(y.bits(r, i) == alone.bits(r, i) && !std::isnan(y.get(r, i)),
                 "%s row %lld depends on its batch", name_of(type), static_cast<long long>(r));
      for (int64_t i = 0; i < kHidden; ++i)
        expect(std::isnan(y.get(1, i)), "NaN was lost from its own row");
    }
  });
}
const Registration b("norm/test_rms_norm_keeps_rows_independent",
                     test_rms_norm_keeps_rows_independent);

void test_rms_norm_of_zeros_is_zero() {
  for_each_target([](const KernelTable& table) {
    Buffer x(DType::kFloat32, 1, 19), y(DType::kFloat32, 1, 19);
    for (int64_t i = 0; i < 19; ++i) x.set(0, i, 0.0);
    NormArgs args{};
    args.x = x.data();
    args.y = y.data();
    args.hidden = 19;
    args.epsilon = 1e-6f;
    table.rms_norm(DType::kFloat32, args, {0, 1});
    for (int64_t i = 0; i < 19; ++i) expect(y.get(0, i) == 0.0f, "entry is not zero");
  });
}
const Registration c("norm/test_rms_norm_of_zeros_is_zero", test_rms_norm_of_zeros_is_zero);

// Row of values through a layer norm.
template <class Real>
std::vector<Real> layer_norm_row(std::vector<Real> x, const Buffer* weight, const Buffer* bias,
                                 Real epsilon) {
  Real mean = 0, variance = 0;
  for (Real v : x) mean += v / static_cast<Real>(x.size());
  for (Real v : x) variance += (v - mean) * (v - mean) / static_cast<Real>(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    x[i] = (x[i] - mean) / std::sqrt(variance + epsilon);
    if (weight) x[i] *= static_cast<Real>(weight->get(0, at));
    if (bias) x[i] += static_cast<Real>(bias->get(0, at));
  }
  return x;
}

void check_layer_norm(const KernelTable& table, DType type, int64_t hidden, bool with_residual,
                      bool with_weight, bool in_place, Random& random) {
  constexpr int64_t kRows = 4;
  constexpr float kEpsilon = 1e-5f;
  const std::string label =
      format("layer norm %s hidden %lld residual %d weight %d in place %d", name_of(type),
             static_cast<long long>(hidden), with_residual, with_weight, in_place);
  Buffer x(type, kRows, hidden, hidden + 5), y(type, kRows, hidden, hidden + 3);
  Buffer residual(type, kRows, hidden, hidden + 7), weight(type, 1, hidden), bias(type, 1, hidden);
  x.fill(random, -1.0, 3.0);
  for (Buffer* buffer : {&residual, &weight, &bias}) buffer->fill(random, -2.0, 2.0);
  Buffer sum = residual;
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t i = 0; i < hidden; ++i)
      sum.set(r, i, with_residual ? x.get(r, i) + residual.get(r, i) : x.get(r, i));
  const Buffer kept = residual;
  const Buffer before = x;
  Buffer& out = in_place ? x : y;
  LayerNormArgs args{};
  args.x = x.data();
  args.x_stride = x.stride();
  args.residual = with_residual ? residual.data() : nullptr;
  args.residual_stride = residual.stride();
  args.weight = with_weight ? weight.data() : nullptr;
  args.bias = with_weight ? bias.data() : nullptr;
  args.y = out.data();
  args.y_stride = out.stride();
  args.hidden = hidden;
  args.epsilon = kEpsilon;
  table.layer_norm(type, args, {1, 3});

  Compare compare(type, label);
  for (int64_t r = 0; r < kRows; ++r) {
    std::vector<double> wide;
    std::vector<float> plain;
    for (int64_t i = 0; i < hidden; ++i) {
      wide.push_back(sum.get(r, i));
      plain.push_back(sum.get(r, i));
      expect(residual.bits(r, i) == kept.bits(r, i), "%s: the residual changed", label.c_str());
      if (r < 1 || r >= 3)
        expect(in_place ? out.bits(r, i) == before.bits(r, i) : out.untouched(r, i),
               "%s: row %lld is outside the slice but was written", label.c_str(),
               static_cast<long long>(r));
    }
    if (r < 1 || r >= 3) continue;
    const Buffer* w = with_weight ? &weight : nullptr;
    const Buffer* b = with_weight ? &bias : nullptr;
    wide = layer_norm_row<double>(wide, w, b, static_cast<double>(kEpsilon));
    plain = layer_norm_row<float>(plain, w, b, kEpsilon);
    for (size_t i = 0; i < wide.size(); ++i)
      compare.add(out.get(r, static_cast<int64_t>(i)), wide[i], plain[i]);
  }
  compare.check();
  for (const Buffer* buffer : {&x, &y, &residual, &weight, &bias}) buffer->check_guards(label);
}

void test_layer_norm_matches_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(23);
    for (DType type : kTypes)
      for (int64_t hidden : odd_sizes())
        for (int flags = 0; flags < 8; ++flags)
          check_layer_norm(table, type, hidden, (flags & 1) != 0, (flags & 2) != 0,
                           (flags & 4) != 0, random);
  });
}
const Registration e("norm/test_layer_norm_matches_reference", test_layer_norm_matches_reference);

}  // namespace
}  // namespace cpu_backend::test

// Low-rank adapters: each token with its own matrices, and bits that do not depend on the others.
#include "harness.h"

namespace cpu_backend::test {
namespace {

// A run longer than a tile, tokens without an adapter, runs of one and two.
constexpr int64_t kAdapters[] = {2, 2, 2, 2, 2, -1, 0, 0, -1, 1, 2};
constexpr int64_t kTokens = 11, kCount = 3;
constexpr Slice kMine = {1, 10};  // the other tokens belong to other threads

struct Case {
  DType type, other;  // of the weights and shrink's x; of expand's y
  int64_t inputs, outputs;
  bool shrinks;
  Buffer x, weights, y;

  Case(DType t, DType u, int64_t in, int64_t out, bool shrink, Random& random)
      : type(t),
        other(u),
        inputs(in),
        outputs(out),
        shrinks(shrink),
        x(shrink ? t : DType::kFloat32, kTokens, in, in + 3),
        weights(t, kCount, in * out, in * out + 5),
        y(shrink ? DType::kFloat32 : u, kTokens, out, out + 2) {
    x.fill(random, -1.0, 1.0);
    weights.fill(random, -1.0, 1.0);
    if (!shrinks) y.fill(random, -1.0, 1.0);
  }

  void run(const KernelTable& table, Slice tokens, Slice columns) {
    LoraArgs args{};
    args.x = x.data();
    args.x_stride = x.stride();
    args.y = y.data();
    args.y_stride = y.stride();
    args.weights = weights.data();
    args.adapter_stride = weights.stride();
    args.adapters = kAdapters;
    args.inputs = inputs;
    args.scale = 0.5f;
    if (shrinks) return table.lora_shrink(type, args, tokens, columns);
    std::vector<float> scratch(static_cast<size_t>(table.lora_expand_scratch_floats(inputs)));
    table.lora_expand(type, other, args, tokens, columns, scratch.data());
  }

  template <class Real>
  Real expected(const Case& before, int64_t token, int64_t output) const {
    Real sum = 0;
    for (int64_t i = 0; i < inputs; ++i)
      sum += static_cast<Real>(x.get(token, i)) *
             static_cast<Real>(weights.get(kAdapters[token], output * inputs + i));
    return shrinks ? sum * Real{0.5} : static_cast<Real>(before.y.get(token, output)) + sum;
  }
};

void check_case(const KernelTable& table, Case& c, Slice columns) {
  const std::string label =
      format("%s, %s beside %s, %lld to %lld", c.shrinks ? "shrink" : "expand", name_of(c.type),
             name_of(c.other), static_cast<long long>(c.inputs), static_cast<long long>(c.outputs));
  const Case before = c;
  Case alone = c;
  c.run(table, kMine, columns);
  for (int64_t t = kMine.begin; t < kMine.end; ++t) alone.run(table, {t, t + 1}, columns);
  Compare compare(c.y.type(), label);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t o = 0; o < c.outputs; ++o) {
      const bool mine = t >= kMine.begin && t < kMine.end && o >= columns.begin && o < columns.end;
      if (mine && kAdapters[t] >= 0) {
        compare.add(c.y.get(t, o), c.expected<double>(before, t, o),
                    c.expected<float>(before, t, o), 0x1p-22 * static_cast<double>(c.inputs));
      } else if (mine && c.shrinks) {
        expect(c.y.get(t, o) == 0.0f, "%s: no adapter gives %g", label.c_str(), c.y.get(t, o));
      } else {
        expect(c.y.bits(t, o) == before.y.bits(t, o), "%s: changed token %lld without being asked",
               label.c_str(), static_cast<long long>(t));
      }
    }
  compare.check();
  expect(c.y == alone.y, "%s: a token's bits depend on the others", label.c_str());
  c.y.check_guards(label);
}

void test_each_token_has_its_adapter() {
  Random random(12);
  for_each_target([&](const KernelTable& table) {
    for (DType type : kTypes)
      for (int64_t size : odd_sizes()) {
        Case shrink(type, type, size, 11, true, random);
        check_case(table, shrink, {0, 11});
        check_case(table, shrink, {table.lora_tile, 11});
        for (DType other : {type, DType::kFloat32})
          for (int64_t rank : {1, 8, 16, 20}) {
            Case expand(type, other, rank, size, false, random);
            check_case(table, expand, {0, size});
          }
      }
    Case wide(DType::kBFloat16, DType::kBFloat16, 16, 4 * table.panel_width, false, random);
    check_case(table, wide, {table.panel_width, 3 * table.panel_width});
  });
}

const Registration kTests[] = {
    {"lora/test_each_token_has_its_adapter", test_each_token_has_its_adapter},
};

}  // namespace
}  // namespace cpu_backend::test

// Linear layers with fp8 weights: the product, and what a row may depend on.
#include "core/gemm_plan.h"
#include "quant_case.h"

namespace cpu_backend::test {
namespace {

QuantLayout fp8(DType scale_type, int64_t n, int64_t k, int64_t group, int parts = 1) {
  QuantLayout layout{8, ZeroKind::kMiddle, scale_type, Activations::kFloat, n, k, group};
  layout.kind = CodeKind::kFp8;
  layout.parts = parts;
  return layout;
}

GemmArgs args_of(const QuantProblem& problem, const std::vector<unsigned char>& packed, Buffer& c,
                 bool with_bias) {
  const QuantLayout& layout = problem.layout;
  GemmArgs args{};
  args.a = problem.x.data();
  args.a_stride = problem.x.stride();
  args.packed = packed.data();
  args.parts = layout.parts;
  args.n = layout.n;
  args.k = layout.k;
  args.codes = &layout;
  args.epilogue.bias = with_bias ? problem.bias.data() : nullptr;
  args.epilogue.c = c.data();
  args.epilogue.c_stride = c.stride();
  args.epilogue.float_output = c.type() != problem.type;
  return args;
}

// All rows and panels, in items of `row_step` rows by `panel_step` panels.
void run(const KernelTable& table, const QuantProblem& problem, const GemmArgs& args,
         int64_t row_step, int64_t panel_step) {
  Buffer scratch(DType::kFloat32, 1, table.gemm_scratch_floats(&problem.layout));
  const int64_t panels = problem.panels(table);
  for (int64_t r = 0; r < problem.m; r += row_step)
    for (int64_t p = 0; p < panels; p += panel_step)
      table.gemm(problem.type, args, {r, std::min(r + row_step, problem.m)},
                 {p, std::min(p + panel_step, panels)}, static_cast<float*>(scratch.data()));
  scratch.check_guards("gemm scratch");
}

void check_product(const KernelTable& table, const QuantProblem& problem, bool with_bias,
                   bool float_output) {
  const QuantLayout& layout = problem.layout;
  const std::string label = label_of(problem);
  const std::vector<unsigned char> packed = problem.pack(table);
  const DType out_type = float_output ? DType::kFloat32 : problem.type;
  Buffer c(out_type, problem.m, layout.n, layout.n + 5);
  run(table, problem, args_of(problem, packed, c, with_bias), problem.m, problem.panels(table));
  Compare compare(out_type, label);
  for (int64_t r = 0; r < problem.m; ++r)
    for (int64_t column = 0; column < layout.n; ++column) {
      double exact = with_bias ? problem.bias.get(0, column) : 0.0;
      double magnitude = std::fabs(exact);
      for (int64_t k = 0; k < layout.k; ++k) {
        const double term = problem.x.get(r, k) * problem.scales.get(k / layout.group, column) *
                            problem.weight(column, k);
        exact += term;
        magnitude += std::fabs(term);
      }
      // A chain of 128 is a random walk; then one rounding and one addition for each group.
      const double roundings = 15.0 + static_cast<double>(layout.groups()) / 2.0;
      compare.add_bounded(c.get(r, column), exact, roundings * 0x1p-24 * magnitude);
    }
  compare.check();
  c.check_guards(label);
}

void test_fp8_gemm_matches_reference() {
  for_each_target_and_emulated([](const KernelTable& table) {
    int64_t turn = 0;
    for (int64_t k : {1, 7, 8, 31, 64, 130, 200, 300}) {
      for (int64_t group : {int64_t{32}, int64_t{50}, int64_t{100}, int64_t{128}, k}) {
        for (int64_t m : {1, 2, 3, 4, 5, 13, 50}) {
          if (group > k) continue;
          ++turn;
          const int64_t n = turn % 6 * table.panel_width + turn % 5 + 1;
          check_product(table,
                        QuantProblem(fp8(kTypes[turn % 3], n, k, group), kTypes[turn / 3 % 3], m),
                        turn % 2 == 0, turn % 4 == 1);
        }
      }
    }
  });
}
const Registration a("gemm_fp8/test_fp8_gemm_matches_reference", test_fp8_gemm_matches_reference);

// Every code by itself: a row of one and weights of one column.
void test_fp8_codes_are_exact() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      QuantProblem problem(fp8(DType::kFloat32, 254, 1, 1), type, 5);
      for (int64_t c = 0; c < problem.layout.n; ++c) {
        problem.codes[static_cast<size_t>(c)] = static_cast<uint8_t>(c < 127 ? c : c + 1);
        problem.scales.set(0, c, 1.0);
      }
      for (int64_t r = 0; r < problem.m; ++r) problem.x.set(r, 0, 1.0);
      const std::vector<unsigned char> packed = problem.pack(table);
      for (int64_t row_step : {1, 5}) {  // decoded in registers, and ahead
        Buffer out(DType::kFloat32, problem.m, problem.layout.n);
        run(table, problem, args_of(problem, packed, out, false), row_step, 1);
        for (int64_t r = 0; r < problem.m; ++r)
          for (int64_t c = 0; c < problem.layout.n; ++c)
            expect(static_cast<double>(out.get(r, c)) == problem.weight(c, 0), "code %02x is %g",
                   problem.codes[static_cast<size_t>(c)], static_cast<double>(out.get(r, c)));
      }
    }
  });
}
const Registration b("gemm_fp8/test_fp8_codes_are_exact", test_fp8_codes_are_exact);

// In any items, deeper than one item's activations may be, with groups that end within a tile.
void test_fp8_row_does_not_depend_on_its_batch() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t deep = activation_elements(2) / 24 + 3 * kChainLength + 5;
    int64_t turn = 0;
    for (DType type : kTypes)
      for (int64_t k : {int64_t{5}, int64_t{300}, deep, int64_t{2048 + 96}})
        // 200: a short chain before a long one.
        for (int64_t group : {int64_t{32}, int64_t{100}, int64_t{200}, int64_t{384}, k}) {
          if (group > k || (kEmulated && ++turn % 3 != 0)) continue;
          const int64_t m = k == 2048 + 96 ? 127 : 27;
          const QuantProblem problem(fp8(type, table.panel_width * 3 / 2 + 1, k, group), type, m);
          const std::vector<unsigned char> packed = problem.pack(table);
          Buffer together(type, m, problem.layout.n);
          run(table, problem, args_of(problem, packed, together, true), m, problem.panels(table));
          for (int64_t row_step : {1, 3, 12, 30}) {
            Buffer apart(type, m, problem.layout.n);
            run(table, problem, args_of(problem, packed, apart, true), row_step, row_step % 2 + 1);
            expect(together == apart, "%s: a row depends on its batch in items of %lld rows",
                   label_of(problem).c_str(), static_cast<long long>(row_step));
          }
        }
  });
}
const Registration c("gemm_fp8/test_fp8_row_does_not_depend_on_its_batch",
                     test_fp8_row_does_not_depend_on_its_batch);

// Two weights side by side: the product of the same weight in one part, and the gate of it.
void test_fp8_parts_and_gates_are_the_steps_one_by_one() {
  for_each_target_and_emulated([](const KernelTable& table) {
    int64_t turn = 0;
    for (int64_t k : {20, 130})
      for (int64_t m : {1, 2, 5, 50, 130}) {
        ++turn;
        const DType type = kTypes[turn % 3];
        const int64_t half = (turn % 4 + (m == 1)) * table.panel_width + turn % 3 * 5 + 1;
        QuantProblem plain(fp8(kTypes[turn / 3 % 3], 2 * half, k, k == 130 ? 32 : k), type, m);
        // Products of two results are in reach of fp16.
        for (int64_t g = 0; g < plain.layout.groups(); ++g)
          for (int64_t i = 0; i < plain.layout.n; ++i)
            plain.scales.set(g, i, plain.scales.get(g, i) * 0x1p-10);
        QuantProblem halves = plain;
        halves.layout.parts = 2;
        const std::vector<unsigned char> packed = plain.pack(table);
        const std::vector<unsigned char> packed_halves = halves.pack(table);
        Buffer product(type, m, plain.layout.n), same(type, m, plain.layout.n);
        run(table, plain, args_of(plain, packed, product, true), m, 100);
        run(table, halves, args_of(halves, packed_halves, same, true), 7, turn % 3 + 1);
        expect(same == product, "%s: other columns in two parts", label_of(plain).c_str());

        Buffer expected(type, m, half), got(type, m, half, half + 3);
        table.activation(type,
                         {product.data(), product.stride(), expected.data(), expected.stride(),
                          half, Activation::kSilu, true, false},
                         {0, m});
        GemmArgs args = args_of(halves, packed_halves, got, true);
        args.epilogue.gated = true;
        args.epilogue.activation = Activation::kSilu;
        run(table, halves, args, m, 2 * (turn % 3 + 1));
        // In fp32 the compiler may contract the two copies of an activation differently.
        const double slack = type == DType::kFloat32 ? 0x1p-21 : 0.0;
        for (int64_t r = 0; r < m; ++r)
          for (int64_t i = 0; i < half; ++i)
            expect(std::fabs(got.get(r, i) - expected.get(r, i)) <=
                       slack * std::fabs(expected.get(r, i)),
                   "%s: the gate gives %a instead of %a", label_of(plain).c_str(),
                   static_cast<double>(got.get(r, i)), static_cast<double>(expected.get(r, i)));
        got.check_guards(label_of(plain));
      }
  });
}
const Registration d("gemm_fp8/test_fp8_parts_and_gates_are_the_steps_one_by_one",
                     test_fp8_parts_and_gates_are_the_steps_one_by_one);

}  // namespace
}  // namespace cpu_backend::test

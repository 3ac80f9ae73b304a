// Two quantized weights side by side: a plain product, and the gate between them.
#include "quant_case.h"

namespace cpu_backend::test {
namespace {

constexpr Activation kGates[] = {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kGeluQuick, Activation::kSwigluOai};

// Every kind of code with every kind of activation that it meets.
template <class Check>
void for_each_format(const Check& check) {
  for (ZeroKind zero : {ZeroKind::kMiddle, ZeroKind::kPoint, ZeroKind::kOffset, ZeroKind::kLevels})
    for (int bits : {2, 3, 4, 8})
      for (Activations activations :
           {Activations::kInt16, Activations::kInt8, Activations::kInt8Token,
            Activations::kInt8TokenAzp, Activations::kInt8Static, Activations::kInt8StaticAzp})
        if (zero != ZeroKind::kLevels || bits == 4)
          check(bits, zero, activations, CodeKind::kInteger);
  for (int bits : {2, 3, 4})
    for (Activations activations : {Activations::kInt16, Activations::kInt8})
      check(bits, ZeroKind::kMiddle, activations, CodeKind::kTable);
}

// The product of the same weight in one part, bit for bit, and what a second op makes of it.
void check_parts(const KernelTable& table, const QuantLayout& layout, int64_t m, int64_t turn) {
  QuantProblem plain(layout, kTypes[turn % 3], m, turn % 4 == 0);
  // Products of two results are in reach of fp16.
  for (int64_t g = 0; g < layout.groups(); ++g)
    for (int64_t c = 0; c < layout.n; ++c) {
      plain.scales.set(g, c, plain.scales.get(g, c) * 0x1p-10);
      if (layout.zero == ZeroKind::kOffset) plain.zeros.set(g, c, plain.zeros.get(g, c) * 0x1p-10);
    }
  QuantProblem halves = plain;
  halves.layout.parts = 2;
  const std::string label = label_of(plain);
  const int64_t half = layout.n / 2;
  const int64_t pairs = turn % 3 + 1;
  const bool with_bias = turn % 2 == 0;
  const std::vector<unsigned char> packed = plain.pack(table), packed_halves = halves.pack(table);
  const QuantizedRows rows = plain.quantize(table, table.quant_tile_rows);
  Buffer product(plain.type, m, layout.n), same(plain.type, m, layout.n);
  run(table, plain.type, plain.gemm_args(rows, packed, product, with_bias), 2, 100);
  run(table, plain.type, halves.gemm_args(rows, packed_halves, same, with_bias), 1, pairs);
  expect(same == product, "%s: other columns in two parts", label.c_str());

  const Activation kind = kGates[turn % 5];
  Buffer expected(plain.type, m, half, half + 3), got(plain.type, m, half, half + 3);
  table.activation(plain.type,
                   {product.data(), product.stride(), expected.data(), expected.stride(), half,
                    kind, true, false},
                   {0, m});
  GemmArgs args = halves.gemm_args(rows, packed_halves, got, with_bias);
  args.epilogue.gated = true;
  args.epilogue.activation = kind;
  run(table, plain.type, args, 200, 2 * pairs);
  // In fp32 the compiler may contract the two copies of an activation differently.
  const double slack = plain.type == DType::kFloat32 ? 0x1p-21 : 0.0;
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < half; ++c)
      expect(std::fabs(got.get(r, c) - expected.get(r, c)) <= slack * std::fabs(expected.get(r, c)),
             "%s: gate %d gives %a instead of %a", label.c_str(), static_cast<int>(kind),
             static_cast<double>(got.get(r, c)), static_cast<double>(expected.get(r, c)));
  got.check_guards(label);

  Buffer alone(plain.type, m, half, half + 3);
  const QuantizedRows row_by_row = plain.quantize(table, 1);
  args.integers = row_by_row.rows;
  args.epilogue.c = alone.data();
  run(table, plain.type, args, 1, 100);
  expect(alone == got, "%s: a gated row depends on its batch", label.c_str());
}

void test_parts_and_gates_are_the_steps_one_by_one() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    int64_t turn = 0;
    for_each_format([&](int bits, ZeroKind zero, Activations activations, CodeKind kind) {
      for (int64_t k : {20, 130}) {
        for (int64_t m : {1, 2, 5, 13, 50, 130}) {
          ++turn;
          if (kEmulated && turn % 3 != 0) continue;
          const int64_t group = turn % 3 == 0 || k < 32 ? k : 32;
          if (zero == ZeroKind::kLevels && !may_have_levels(bits, k, group)) continue;
          // Of one row, up to nine panels: two pairs at once and one that is left.
          const int64_t half = (turn % 4 + (m == 1)) * width + turn % 3 * 5 + 1;
          check_parts(table,
                      {bits, zero, kTypes[turn / 3 % 3], activations, 2 * half, k, group, kind}, m,
                      turn);
        }
      }
    });
  });
}
const Registration a("quant_parts/test_parts_and_gates_are_the_steps_one_by_one",
                     test_parts_and_gates_are_the_steps_one_by_one);

}  // namespace
}  // namespace cpu_backend::test

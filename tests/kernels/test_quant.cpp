// Quantized linear layers: the integer product, and what a row may depend on.
#include "quant_case.h"

namespace cpu_backend::test {
namespace {

constexpr Activations kActivations[] = {Activations::kInt16,      Activations::kInt8,
                                        Activations::kInt8Token,  Activations::kInt8TokenAzp,
                                        Activations::kInt8Static, Activations::kInt8StaticAzp};
constexpr ZeroKind kZeros[] = {ZeroKind::kMiddle, ZeroKind::kPoint, ZeroKind::kOffset};

// Every output against the sum of exact integer products, one per segment: each is scaled with two
// roundings and added with one.
void check_product(const KernelTable& table, const QuantProblem& problem, int64_t tile_rows,
                   bool with_bias) {
  const QuantLayout& layout = problem.layout;
  const std::string label = label_of(problem);
  const std::vector<unsigned char> packed = problem.pack(table);
  const QuantizedRows rows = problem.quantize(table, tile_rows);
  Buffer c(problem.type, problem.m, layout.n, layout.n + 5);
  const GemmArgs args = problem.gemm_args(rows, packed, c, with_bias);
  Buffer scratch(DType::kFloat32, 1, table.gemm_scratch_floats(&layout));
  table.gemm(problem.type, args, {0, problem.m}, {0, problem.panels(table)},
             static_cast<float*>(scratch.data()));
  Compare compare(problem.type, label);
  for (int64_t r = 0; r < problem.m; ++r) {
    const IntegerRow row = problem.integers(r);
    for (int64_t column = 0; column < layout.n; ++column) {
      double exact = 0.0;
      double magnitude = 0.0;
      for (int64_t k = 0; k < layout.k; ++k) {
        const auto i = static_cast<size_t>(k);
        const double unit =
            row.codes[i] * row.scales[i] * problem.scales.get(k / layout.group, column);
        exact += unit * problem.weight(column, k);
        magnitude += std::fabs(unit) * problem.weight_bound(column, k);
      }
      if (with_bias) {
        exact += problem.bias.get(0, column);
        magnitude += std::fabs(problem.bias.get(0, column));
      }
      const double roundings = 3.0 + static_cast<double>(layout.segments()) / 2.0;
      compare.add_bounded(c.get(r, column), exact, roundings * 0x1p-24 * magnitude);
    }
  }
  compare.check();
  c.check_guards(label);
}

void test_gemm_is_the_integer_definition() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    int64_t turn = 0;
    for (int bits : {2, 3, 4, 8}) {
      for (ZeroKind zero : kZeros) {
        for (Activations activations : kActivations) {
          for (int64_t k : {1, 7, 8, 31, 64, 130, 200}) {
            for (int64_t group : {int64_t{8}, int64_t{12}, int64_t{32}, int64_t{100}, k}) {
              if (group > k) continue;
              ++turn;
              const int64_t m = turn % 14 + 1;
              const int64_t tile_rows = turn / 14 % table.quant_tile_rows + 1;
              // One row takes up to four panels side by side, and five as three and two.
              const int64_t halves = m == 1 ? turn / 14 % 9 + 1 : turn % 3 + 1;
              const int64_t n = halves * width / 2 + turn % 4;
              const QuantLayout layout{bits, zero, kTypes[turn % 3], activations, n, k, group};
              check_product(table, QuantProblem(layout, kTypes[turn / 3 % 3], m, turn % 5 == 0),
                            tile_rows, turn % 2 == 0);
            }
          }
        }
      }
    }
  });
}
const Registration a("quant/test_gemm_is_the_integer_definition",
                     test_gemm_is_the_integer_definition);

// By the definition, and to the bit what the codes give that others expand into: few rows, which
// meet them as they are, one tile, which expands as it goes, and several, which find a panel
// expanded.
void check_expanded(const KernelTable& table, const QuantLayout& layout, int64_t m, int64_t turn) {
  const QuantProblem problem(layout, kTypes[turn / 3 % 3], m, turn % 4 == 0);
  const int64_t tile_rows = m <= QuantLayout::kFewRows && turn % 2 == 0 ? 3 : table.quant_tile_rows;
  check_product(table, problem, tile_rows, turn % 2 == 0);
  QuantProblem expanded = problem;
  expanded.layout = layout.expanded();
  const int moved = expanded.layout.middle();
  const QuantizedRows rows8 = expanded.quantize(table, tile_rows);  // in the order of the codes
  expanded.channels_in = layout.k;
  expanded.codes.resize(static_cast<size_t>(layout.n * layout.k));
  for (int64_t column = 0; column < layout.n; ++column)
    for (int64_t i = 0; i < layout.k; ++i)
      expanded.codes[static_cast<size_t>(column * layout.k + i)] =
          static_cast<uint8_t>(layout.zero == ZeroKind::kMiddle || layout.zero == ZeroKind::kLevels
                                   ? problem.weight(column, i) + moved
                                   : problem.code(column, i));
  expanded.channels.clear();
  const QuantizedRows rows = problem.quantize(table, tile_rows);
  const std::vector<unsigned char> packed = problem.pack(table);
  const std::vector<unsigned char> packed8 = expanded.pack(table);
  Buffer c(problem.type, m, layout.n), c8(problem.type, m, layout.n);
  run(table, problem.type, problem.gemm_args(rows, packed, c, false), turn % 3 + 1, 2);
  run(table, problem.type, expanded.gemm_args(rows8, packed8, c8, false), 1, 3);
  expect(c == c8, "%s: not the product of the codes that these expand into",
         label_of(problem).c_str());
}

template <class Check>
void for_each_expanded(const Check& check) {
  for_each_target([&](const KernelTable& table) {
    int64_t turn = 0;
    for (Activations activations : {Activations::kInt16, Activations::kInt8})
      for (int64_t k : {1, 7, 31, 64, 100, 128, 130, 200, 300})
        for (int64_t group : {int64_t{32}, int64_t{96}, int64_t{128}, k})
          for (int64_t m : {1, 2, 4, 13, 30}) {
            if (group > k) continue;
            ++turn;
            const int64_t n = (turn % 5 + 1) * table.panel_width / 2 + turn % 3;
            check(table,
                  QuantLayout{4, ZeroKind::kMiddle, kTypes[turn % 3], activations, n, k, group}, m,
                  turn);
          }
  });
}

void test_levels_are_the_codes_that_they_stand_for() {
  for_each_expanded([](const KernelTable& table, QuantLayout layout, int64_t m, int64_t turn) {
    if (!may_have_levels(4, layout.k, layout.group)) return;
    layout.zero = ZeroKind::kLevels;
    check_expanded(table, layout, m, turn);
  });
}
const Registration k("quant/test_levels_are_the_codes_that_they_stand_for",
                     test_levels_are_the_codes_that_they_stand_for);

void test_tables_are_the_codes_that_they_stand_for() {
  for_each_expanded([](const KernelTable& table, QuantLayout layout, int64_t m, int64_t turn) {
    layout.kind = CodeKind::kTable;
    layout.bits = 2 + static_cast<int>(turn % 3);
    check_expanded(table, layout, m, turn);
  });
}
const Registration l("quant/test_tables_are_the_codes_that_they_stand_for",
                     test_tables_are_the_codes_that_they_stand_for);

// Of 2 and 3 bits; all kinds of activations, as 4-bit codes meet all.
void test_narrow_codes_are_4_bit_codes() {
  for_each_expanded([](const KernelTable& table, QuantLayout layout, int64_t m, int64_t turn) {
    for (int bits : {2, 3}) {
      layout.bits = bits;
      layout.zero = kZeros[(turn + bits) % 3];
      if (turn % 3 == 0) layout.activations = kActivations[2 + turn / 3 % 4];
      check_expanded(table, layout, m, turn);
    }
  });
}
const Registration n("quant/test_narrow_codes_are_4_bit_codes", test_narrow_codes_are_4_bit_codes);

// The largest sums of either sign, over more steps than any partial sum holds by itself.
void test_gemm_survives_extremes() {
  for_each_target([](const KernelTable& table) {
    const int64_t k = kEmulated ? 1024 : 9000;
    for (int bits : {2, 3, 4, 8}) {
      for (Activations activations : kActivations) {
        for (int64_t group : {int64_t{128}, int64_t{1000}, k}) {
          for (uint8_t code : {0x00, 0xff}) {
            QuantLayout layout{bits, ZeroKind::kPoint, DType::kFloat32, activations, 17, k, group};
            QuantProblem problem(layout, DType::kFloat32, 3);
            problem.static_zero = 0;
            for (uint8_t& each : problem.codes) each = code & ((1 << bits) - 1);
            for (int64_t g = 0; g < layout.groups(); ++g)
              for (int64_t c = 0; c < layout.n; ++c) problem.zeros.set(g, c, c % 2 ? 1 << bits : 0);
            for (int64_t r = 0; r < problem.m; ++r)
              for (int64_t i = 0; i < k; ++i)
                problem.x.set(r, i, r == 0 ? -1e6 : r == 1 ? 1e6 : i % 2 ? 1e6 : -1e6);
            check_product(table, problem, 3, false);
          }
        }
      }
    }
  });
}
const Registration b("quant/test_gemm_survives_extremes", test_gemm_survives_extremes);

void test_quant_row_does_not_depend_on_its_batch() {
  for_each_target([](const KernelTable& table) {
    int64_t turn = 0;
    for (int bits : {2, 3, 4, 8}) {
      for (Activations activations : kActivations) {
        const ZeroKind zero = kZeros[++turn % 3];
        const QuantLayout layout{
            bits, zero, DType::kBFloat16, activations, 7 * table.panel_width / 2 + 1, 300, 64};
        const QuantProblem problem(layout, DType::kBFloat16, 29);
        const std::vector<unsigned char> packed = problem.pack(table);
        Buffer together(problem.type, problem.m, layout.n),
            apart(problem.type, problem.m, layout.n);
        QuantizedRows rows = problem.quantize(table, 1);
        run(table, problem.type, problem.gemm_args(rows, packed, together, true), 1, 100);
        for (int64_t tile_rows :
             {int64_t{2}, int64_t{3}, int64_t{5}, int64_t{12}, table.quant_tile_rows}) {
          apart = Buffer(problem.type, problem.m, layout.n);
          rows = problem.quantize(table, tile_rows);
          run(table, problem.type, problem.gemm_args(rows, packed, apart, true), tile_rows % 2 + 1,
              tile_rows % 3 + 1);
          expect(together == apart, "%s: rows by %lld differ", label_of(problem).c_str(),
                 static_cast<long long>(tile_rows));
        }
      }
    }
  });
}
const Registration c("quant/test_quant_row_does_not_depend_on_its_batch",
                     test_quant_row_does_not_depend_on_its_batch);

// Tiles of so many rows that a target may have another unit for them, beside tiles of four.
void test_many_rows_have_the_bits_of_few() {
  for_each_target_and_emulated([](const KernelTable& table) {
    struct Format {
      int bits;
      ZeroKind zero;
      CodeKind kind;
    };
    constexpr Format kFormats[] = {
        {8, ZeroKind::kMiddle, CodeKind::kInteger}, {8, ZeroKind::kPoint, CodeKind::kInteger},
        {8, ZeroKind::kOffset, CodeKind::kInteger}, {4, ZeroKind::kMiddle, CodeKind::kInteger},
        {4, ZeroKind::kPoint, CodeKind::kInteger},  {4, ZeroKind::kOffset, CodeKind::kInteger},
        {4, ZeroKind::kLevels, CodeKind::kInteger}, {4, ZeroKind::kMiddle, CodeKind::kTable},
        {3, ZeroKind::kMiddle, CodeKind::kInteger}, {3, ZeroKind::kPoint, CodeKind::kInteger},
        {3, ZeroKind::kOffset, CodeKind::kInteger}, {3, ZeroKind::kMiddle, CodeKind::kTable},
        {2, ZeroKind::kMiddle, CodeKind::kInteger}, {2, ZeroKind::kPoint, CodeKind::kInteger},
        {2, ZeroKind::kOffset, CodeKind::kInteger}, {2, ZeroKind::kMiddle, CodeKind::kTable}};
    constexpr int64_t kRows[] = {13, 16, 17, 31, 32, 33, 47, 50, 64, 81, 95, 96, 97, 130};
    int64_t turn = 0;
    for (const Format& format : kFormats) {
      for (Activations activations : kActivations) {
        // Parts of a segment, several segments of a group, more channels than stay in a cache.
        for (int64_t k : {20, 64, 300, 1100}) {
          for (int64_t group : {int64_t{16}, int64_t{32}, int64_t{96}, int64_t{128}, k}) {
            if (group > k || ++turn % (kEmulated ? 7 : 1) != 0) continue;
            if (format.zero == ZeroKind::kLevels && !may_have_levels(4, k, group)) continue;
            const int64_t m = kRows[turn * 3 % 14];
            const int64_t n = (turn % 3 + 1) * table.panel_width - turn % 5;
            const QuantLayout layout{format.bits, format.zero, kTypes[turn % 3], activations, n,
                                     k,           group,       format.kind};
            const QuantProblem problem(layout, kTypes[turn / 3 % 3], m, turn % 4 == 0);
            const std::vector<unsigned char> packed = problem.pack(table);
            Buffer few(problem.type, m, n), many(problem.type, m, n);
            QuantizedRows rows = problem.quantize(table, 4);
            run(table, problem.type, problem.gemm_args(rows, packed, few, true), 2, 1);
            rows = problem.quantize(table, table.quant_tile_rows);
            run(table, problem.type, problem.gemm_args(rows, packed, many, true), turn % 2 + 1,
                turn % 3 + 1);
            expect(few == many, "%s: other bits", label_of(problem).c_str());
          }
        }
      }
    }
  });
}
const Registration m("quant/test_many_rows_have_the_bits_of_few",
                     test_many_rows_have_the_bits_of_few);

void test_gemm_touches_only_its_rows_and_panels() {
  for_each_target([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    for (Activations activations : kActivations) {
      for (int64_t tile_rows : {1, 3}) {
        const QuantLayout layout{
            8, ZeroKind::kMiddle, DType::kFloat32, activations, 3 * width - 1, 70, 70};
        QuantProblem problem(layout, DType::kFloat32, 7);
        problem.x.set(4, 60, HUGE_VAL);  // stays in its row
        problem.x.set(5, 4, std::nan(""));
        const std::vector<unsigned char> packed = problem.pack(table);
        const QuantizedRows rows = problem.quantize(table, tile_rows);
        Buffer out(DType::kFloat32, problem.m, layout.n, layout.n + 2);
        Buffer scratch(DType::kFloat32, 1, table.gemm_scratch_floats(&layout));
        table.gemm(DType::kFloat32, problem.gemm_args(rows, packed, out, false), {3, 6}, {1, 2},
                   static_cast<float*>(scratch.data()));
        const bool is_static =
            activations == Activations::kInt8Static || activations == Activations::kInt8StaticAzp;
        for (int64_t r = 0; r < problem.m; ++r)
          for (int64_t column = 0; column < layout.n; ++column) {
            const bool mine = r >= 3 && r < 6 && column >= width && column < 2 * width;
            if (!mine) expect(out.untouched(r, column), "wrote outside its rows and panels");
            if (mine && !is_static)
              expect(std::isnan(out.get(r, column)) == (r >= 4),
                     "%s: NaN moved to or from row %lld", name_of(activations),
                     static_cast<long long>(r));
          }
      }
    }
  });
}
const Registration d("quant/test_gemm_touches_only_its_rows_and_panels",
                     test_gemm_touches_only_its_rows_and_panels);

void test_quant_rows_of_nothing_are_zero() {
  for_each_target([](const KernelTable& table) {
    for (Activations activations : kActivations) {
      for (double tiny : {0.0, 1e-38, 1e-42}) {
        const QuantLayout layout{4, ZeroKind::kPoint, DType::kFloat32, activations, 9, 40, 16};
        QuantProblem problem(layout, DType::kFloat32, 2);
        for (int64_t i = 0; i < 40; ++i) problem.x.set(1, i, i % 2 ? tiny : -tiny);
        const std::vector<unsigned char> packed = problem.pack(table);
        const QuantizedRows rows = problem.quantize(table, 2);
        Buffer out(DType::kFloat32, problem.m, layout.n);
        run(table, problem.type, problem.gemm_args(rows, packed, out, false), 1, 1);
        for (int64_t column = 0; column < layout.n; ++column)
          expect(out.get(1, column) == 0.0f && out.get(0, column) != 0.0f, "%s: %g",
                 name_of(activations), static_cast<double>(out.get(1, column)));
      }
    }
  });
}
const Registration e("quant/test_quant_rows_of_nothing_are_zero",
                     test_quant_rows_of_nothing_are_zero);

// The caller's codes and a correction per row and column: what the host's int8 products are.
void test_quant_given_codes_and_shifts() {
  for_each_target([](const KernelTable& table) {
    const int64_t m = 7, n = 2 * table.panel_width + 3;
    for (int64_t k : {1, 9, 33, 257}) {
      for (int64_t scale_stride : {0, 1}) {
        const QuantLayout layout{
            8, ZeroKind::kMiddle, DType::kFloat32, Activations::kInt8Static, n, k, k};
        QuantProblem problem(layout, DType::kFloat32, m);
        Random random(static_cast<uint64_t>(k));
        std::vector<int8_t> codes(static_cast<size_t>(m * (k + 3)));
        for (int8_t& code : codes) code = static_cast<int8_t>(random.below(256) - 128);
        std::vector<float> scales, shifts, adjust;
        for (int64_t r = 0; r < m; ++r)
          scales.push_back(static_cast<float>(random.uniform(0.1, 2)));
        for (int64_t r = 0; r < m; ++r) shifts.push_back(static_cast<float>(random.uniform(-9, 9)));
        for (int64_t i = 0; i < n; ++i) adjust.push_back(static_cast<float>(random.uniform(-9, 9)));
        const QuantizedRows rows(table, layout, m, 5);
        const QuantGivenArgs given{layout,        codes.data(), k + 3,
                                   scales.data(), scale_stride, rows.rows};
        table.quantize_given(given, {0, 3});
        table.quantize_given(given, {3, m});
        const std::vector<unsigned char> packed = problem.pack(table);
        Buffer c(DType::kFloat32, m, n, n + 1);
        GemmArgs args = problem.gemm_args(rows, packed, c, true);
        args.row_shift = shifts.data();
        args.column_shift = adjust.data();
        run(table, problem.type, args, 1, 2);
        Compare compare(DType::kFloat32, "given");
        for (int64_t r = 0; r < m; ++r)
          for (int64_t column = 0; column < n; ++column) {
            double dot = 0.0;
            for (int64_t i = 0; i < k; ++i)
              dot += codes[static_cast<size_t>(r * (k + 3) + i)] * problem.weight(column, i);
            const double product =
                dot * scales[static_cast<size_t>(r * scale_stride)] * problem.scales.get(0, column);
            const double shift = static_cast<double>(shifts[static_cast<size_t>(r)]) *
                                 adjust[static_cast<size_t>(column)];
            const double bias = problem.bias.get(0, column);
            compare.add_bounded(
                c.get(r, column), product + shift + bias,
                4 * 0x1p-24 * (std::fabs(product) + std::fabs(shift) + std::fabs(bias)));
          }
        compare.check();
        c.check_guards("given");
      }
    }
  });
}
const Registration f("quant/test_quant_given_codes_and_shifts", test_quant_given_codes_and_shifts);

}  // namespace
}  // namespace cpu_backend::test

// Linear layers: the packed layout, the product, and what a row may depend on.
#include "core/gemm_plan.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

// A linear layer with its operands: a [m, k], weight [n, k], bias [n] and residual [m, n], all of
// the storage type.
struct Problem {
  DType type;
  int64_t m, n, k;
  int parts;
  Buffer a, weight, bias, residual;

  Problem(DType type_, int64_t m_, int64_t n_, int64_t k_, bool transposed = false, int parts_ = 1)
      : type(type_),
        m(m_),
        n(n_),
        k(k_),
        parts(parts_),
        a(type_, m_, k_, k_ + 3),
        weight(type_, transposed ? k_ : n_, transposed ? n_ : k_, (transposed ? n_ : k_) + 5),
        bias(type_, 1, n_),
        residual(type_, m_, n_, n_ + 9),
        transposed_(transposed) {
    Random random(static_cast<uint64_t>(m * 1000003 + n * 1009 + k));
    a.fill(random, -1.0, 1.0);
    weight.fill(random, -1.0, 1.0);
    bias.fill(random, -1.0, 1.0);
    residual.fill(random, -1.0, 1.0);
  }
  double w(int64_t column, int64_t depth) const {
    return transposed_ ? weight.get(depth, column) : weight.get(column, depth);
  }
  int64_t panels(const KernelTable& table) const { return table.panel_count(n, parts); }

  Buffer pack(const KernelTable& table) const {
    Buffer packed(type, 1, table.packed_elements(type, n, k, parts));
    const PackArgs args{weight.data(),
                        transposed_ ? 1 : weight.stride(),
                        transposed_ ? weight.stride() : 1,
                        n,
                        k,
                        parts,
                        packed.data()};
    for (int64_t p = panels(table) - 1; p >= 0; --p) table.pack_weight(type, args, {p, p + 1});
    packed.check_guards("packed");
    return packed;
  }

  GemmArgs args(const Buffer& packed, Buffer& c, bool with_bias) const {
    GemmArgs args{};
    args.a = a.data();
    args.a_stride = a.stride();
    args.packed = packed.data();
    args.parts = parts;
    args.n = n;
    args.k = k;
    args.epilogue.bias = with_bias ? bias.data() : nullptr;
    args.epilogue.c = c.data();
    args.epilogue.c_stride = c.stride();
    args.epilogue.float_output = c.type() != type;
    return args;
  }

  // Rows [rows.begin, rows.end) of c, in items of `row_step` x `panel_step`.
  void run(const KernelTable& table, const GemmArgs& args, Slice rows, int64_t row_step,
           int64_t panel_step) const {
    Buffer scratch(DType::kFloat32, 1, table.gemm_scratch_floats(nullptr));
    for (int64_t r = rows.begin; r < rows.end; r += row_step)
      for (int64_t p = 0; p < panels(table); p += panel_step)
        table.gemm(type, args, {r, std::min(r + row_step, rows.end)},
                   {p, std::min(p + panel_step, panels(table))},
                   static_cast<float*>(scratch.data()));
    scratch.check_guards("gemm scratch");
  }

 private:
  bool transposed_;
};

// The layout that kernels/tiles/panel.h documents, written out again.
void test_pack_weight_follows_the_documented_layout() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    for (DType type : kTypes) {
      for (int64_t n : {int64_t{1}, width - 1, width, width + 1, 3 * width}) {
        for (int64_t k : {1, 2, 3, 8, 31, 70}) {
          for (bool transposed : {false, true}) {
            const Problem problem(type, 1, n, k, transposed);
            const Buffer packed = problem.pack(table);
            const int64_t rows = packed.columns() / (problem.panels(table) * width);
            expect(packed.columns() == problem.panels(table) * rows * width && rows >= k &&
                       rows <= round_up(k, 32),
                   "packed size");
            for (int64_t p = 0; p < problem.panels(table); ++p)
              for (int64_t depth = 0; depth < rows; ++depth)
                for (int64_t c = 0; c < width; ++c) {
                  const int64_t column = p * width + c;
                  const bool real = column < n && depth < k;
                  const float got =
                      packed.get(0, p * rows * width +
                                        documented_offset(table, words_of(type), depth, c, width));
                  expect(got == (real ? static_cast<float>(problem.w(column, depth)) : 0.0f),
                         "%s n %lld k %lld: weight (%lld, %lld) is %g", name_of(type),
                         static_cast<long long>(n), static_cast<long long>(k),
                         static_cast<long long>(column), static_cast<long long>(depth),
                         static_cast<double>(got));
                }
          }
        }
      }
    }
  });
}
const Registration a("gemm/test_pack_weight_follows_the_documented_layout",
                     test_pack_weight_follows_the_documented_layout);

void check_product(const KernelTable& table, const Problem& problem, bool with_bias,
                   bool float_output) {
  const DType out_type = float_output ? DType::kFloat32 : problem.type;
  const std::string label =
      format("%s m %lld n %lld k %lld bias %d fp32 out %d", name_of(problem.type),
             static_cast<long long>(problem.m), static_cast<long long>(problem.n),
             static_cast<long long>(problem.k), with_bias, float_output);
  const Buffer packed = problem.pack(table);
  Buffer c(out_type, problem.m, problem.n, problem.n + 7);
  problem.run(table, problem.args(packed, c, with_bias), {0, problem.m}, problem.m,
              problem.panels(table));
  Compare compare(out_type, label);
  for (int64_t r = 0; r < problem.m; ++r) {
    for (int64_t column = 0; column < problem.n; ++column) {
      double wide = 0.0;
      double squares = 0.0;
      float plain = 0.0f;
      for (int64_t depth = 0; depth < problem.k; ++depth) {
        const double term = problem.a.get(r, depth) * problem.w(column, depth);
        wide += term;
        squares += term * term;
        plain += problem.a.get(r, depth) * static_cast<float>(problem.w(column, depth));
      }
      if (with_bias) {
        wide += problem.bias.get(0, column);
        plain += problem.bias.get(0, column);
      }
      // Partial sums grow like a random walk, sqrt(j) * |terms|, and each is rounded once.
      compare.add(c.get(r, column), wide, plain,
                  0.3 * 0x1p-24 * std::sqrt(squares * static_cast<double>(problem.k)));
    }
  }
  compare.check();
  c.check_guards(label);
}

void test_gemm_matches_reference() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    int64_t turn = 0;
    for (DType type : kTypes) {
      for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25}) {
        for (int64_t n : {int64_t{1}, width - 1, width, width + 1, 4 * width, 6 * width + 3}) {
          for (int64_t k : {1, 2, 3, 17, 127, 128, 129, 257}) {
            ++turn;
            check_product(table, Problem(type, m, n, k), turn % 2 == 0, turn % 4 == 1);
          }
        }
      }
    }
  });
}
const Registration b("gemm/test_gemm_matches_reference", test_gemm_matches_reference);

void test_gemm_row_does_not_depend_on_its_batch() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int64_t k : {5, 131, 300}) {
        const int64_t n = 9 * table.panel_width / 2 + 1;
        const Problem problem(type, 27, n, k);
        const Buffer packed = problem.pack(table);
        const int64_t panels = problem.panels(table);
        Buffer together(type, problem.m, n, n + 1), apart(type, problem.m, n, n + 1);
        const Slice all{0, problem.m};
        problem.run(table, problem.args(packed, together, true), all, problem.m, panels);
        const auto check = [&](const char* how) {
          for (int64_t r = 0; r < problem.m; ++r)
            for (int64_t c = 0; c < n; ++c)
              if (!expect(together.bits(r, c) == apart.bits(r, c),
                          "%s k %lld: row %lld column %lld %s differs", name_of(type),
                          static_cast<long long>(k), static_cast<long long>(r),
                          static_cast<long long>(c), how))
                return;
        };
        problem.run(table, problem.args(packed, apart, true), all, 1, panels);
        check("alone");
        for (int64_t row_step : {2, 5, 12}) {
          for (int64_t panel_step : {1, 2, 4}) {
            apart = Buffer(type, problem.m, n, n + 1);
            problem.run(table, problem.args(packed, apart, true), all, row_step, panel_step);
            check("in other items");
          }
        }
      }
    }
  });
}
const Registration c("gemm/test_gemm_row_does_not_depend_on_its_batch",
                     test_gemm_row_does_not_depend_on_its_batch);

void test_gemm_touches_only_its_rows_and_panels() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    for (DType type : kTypes) {
      Problem problem(type, 5, 3 * width - 1, 33);
      problem.a.set(3, 4, std::nan(""));  // stays in its row
      const Buffer packed = problem.pack(table);
      Buffer out(type, problem.m, problem.n, problem.n + 2);
      Buffer scratch(DType::kFloat32, 1, table.gemm_scratch_floats(nullptr));
      const GemmArgs args = problem.args(packed, out, false);
      table.gemm(type, args, {1, 4}, {1, 2}, static_cast<float*>(scratch.data()));
      for (int64_t r = 0; r < problem.m; ++r)
        for (int64_t column = 0; column < problem.n; ++column) {
          const bool mine = r >= 1 && r < 4 && column >= width && column < 2 * width;
          if (!mine) expect(out.untouched(r, column), "wrote outside its rows and panels");
          if (mine)
            expect(std::isnan(out.get(r, column)) == (r == 3), "NaN moved to or from row %lld",
                   static_cast<long long>(r));
        }
    }
  });
}
const Registration d("gemm/test_gemm_touches_only_its_rows_and_panels",
                     test_gemm_touches_only_its_rows_and_panels);

// Long sums: chains of bounded length must lose clearly less than one chain over all of k.
void test_gemm_sums_in_short_chains() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const Problem problem(DType::kFloat32, 6, 64, 4096);
    const Buffer packed = problem.pack(table);
    Buffer out(DType::kFloat32, problem.m, problem.n);
    problem.run(table, problem.args(packed, out, false), {0, problem.m}, problem.m,
                problem.panels(table));
    double kernel_error = 0.0;
    double chain_error = 0.0;
    for (int64_t r = 0; r < problem.m; ++r) {
      for (int64_t column = 0; column < problem.n; ++column) {
        double wide = 0.0;
        float chain = 0.0f;
        for (int64_t k = 0; k < problem.k; ++k) {
          wide += problem.a.get(r, k) * problem.w(column, k);
          chain += problem.a.get(r, k) * static_cast<float>(problem.w(column, k));
        }
        kernel_error += std::pow(out.get(r, column) - wide, 2.0);
        chain_error += std::pow(chain - wide, 2.0);
      }
    }
    expect(std::sqrt(kernel_error / chain_error) < 0.6, "%.2f of the error of one long chain",
           std::sqrt(kernel_error / chain_error));
  });
}
const Registration e("gemm/test_gemm_sums_in_short_chains", test_gemm_sums_in_short_chains);

// Deeper than one item's activations may be: products wait in scratch for the rest of their depth.
void test_gemm_takes_long_rows_in_parts() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      const int64_t k = activation_elements(2) / 24 + 3 * kChainLength + 5;
      const Problem problem(type, 26, table.panel_width + 3, k);
      const Buffer packed = problem.pack(table);
      const int64_t panels = problem.panels(table);
      Buffer together(type, problem.m, problem.n), apart(type, problem.m, problem.n);
      problem.run(table, problem.args(packed, together, true), {0, problem.m}, problem.m, panels);
      problem.run(table, problem.args(packed, apart, true), {0, problem.m}, 1, 1);
      expect(together == apart, "%s: a row depends on how deep its batch goes at a time",
             name_of(type));
      check_product(table, Problem(type, 2, 5, k), true, false);
    }
    // As deep as matrix tiles take 128 rows, and a part more; rows of tiles that are not full.
    const Problem problem(DType::kBFloat16, 127, table.panel_width + 3, 2048 + 96);
    const Buffer packed = problem.pack(table);
    const int64_t panels = problem.panels(table);
    Buffer together(problem.type, problem.m, problem.n), apart(problem.type, problem.m, problem.n);
    problem.run(table, problem.args(packed, together, true), {0, problem.m}, problem.m, panels);
    problem.run(table, problem.args(packed, apart, true), {0, problem.m}, 1, 1);
    expect(together == apart, "a row of 127 depends on its batch");
  });
}
const Registration f("gemm/test_gemm_takes_long_rows_in_parts", test_gemm_takes_long_rows_in_parts);

// Two weights stacked along n, their panels in turns: the same values in the same columns.
void test_gemm_of_interleaved_parts_gives_natural_columns() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    for (DType type : kTypes) {
      for (int64_t half : {int64_t{1}, width - 1, width, width + 1, 3 * width + 2}) {
        for (int64_t m : {1, 2, 3, 7}) {
          const Problem plain(type, m, 2 * half, 19), halves(type, m, 2 * half, 19, false, 2);
          const Buffer packed_plain = plain.pack(table), packed_halves = halves.pack(table);
          Buffer expected(type, m, plain.n, plain.n + 3), got(type, m, plain.n, plain.n + 3);
          plain.run(table, plain.args(packed_plain, expected, true), {0, m}, m,
                    plain.panels(table));
          for (int64_t step : {1, 3}) {
            got = Buffer(type, m, plain.n, plain.n + 3);
            halves.run(table, halves.args(packed_halves, got, true), {0, m}, m, step);
            expect(got == expected, "%s %lld rows of 2 x %lld columns", name_of(type),
                   static_cast<long long>(m), static_cast<long long>(half));
          }
        }
      }
    }
  });
}
const Registration g("gemm/test_gemm_of_interleaved_parts_gives_natural_columns",
                     test_gemm_of_interleaved_parts_gives_natural_columns);

// The store adds what a separate op would have added to the stored product, bit for bit.
void test_gemm_adds_the_residual_as_a_second_op_would() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int64_t m : {1, 2, 7}) {
        const Problem problem(type, m, 2 * table.panel_width + 3, 37);
        const Buffer packed = problem.pack(table);
        const int64_t panels = problem.panels(table);
        Buffer product(type, m, problem.n), sum(type, m, problem.n, problem.n + 4);
        problem.run(table, problem.args(packed, product, true), {0, m}, m, panels);
        GemmArgs args = problem.args(packed, sum, true);
        args.epilogue.residual = problem.residual.data();
        args.epilogue.residual_stride = problem.residual.stride();
        problem.run(table, args, {0, m}, m, panels);
        Buffer expected(type, m, problem.n, problem.n + 4);
        for (int64_t r = 0; r < m; ++r)
          for (int64_t c = 0; c < problem.n; ++c)
            expected.set(r, c, product.get(r, c) + problem.residual.get(r, c));
        expect(sum == expected, "%s %lld rows", name_of(type), static_cast<long long>(m));
      }
    }
  });
}
const Registration h("gemm/test_gemm_adds_the_residual_as_a_second_op_would",
                     test_gemm_adds_the_residual_as_a_second_op_would);

// The store activates as a separate op would the stored product, bit for bit.
void test_gemm_activates_as_a_second_op_would() {
  for_each_target_and_emulated([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (Activation kind :
           {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kGeluQuick}) {
        for (int64_t m : {1, 2, 13}) {
          const Problem problem(type, m, 2 * table.panel_width + 3, 29);
          const Buffer packed = problem.pack(table);
          const int64_t panels = problem.panels(table);
          Buffer expected(type, m, problem.n, problem.n + 4);
          Buffer got(type, m, problem.n, problem.n + 4);
          problem.run(table, problem.args(packed, expected, true), {0, m}, m, panels);
          const ActivationArgs second{expected.data(), expected.stride(),
                                      expected.data(), expected.stride(),
                                      problem.n,       kind,
                                      false,           false};
          table.activation(type, second, {0, m});
          GemmArgs args = problem.args(packed, got, true);
          args.epilogue.activated = true;
          args.epilogue.activation = kind;
          problem.run(table, args, {0, m}, m, m == 2 ? 1 : panels);
          expect(got == expected, "%s %lld rows, activation %d", name_of(type),
                 static_cast<long long>(m), static_cast<int>(kind));
          got.check_guards("activated");
        }
      }
    }
  });
}
const Registration k("gemm/test_gemm_activates_as_a_second_op_would",
                     test_gemm_activates_as_a_second_op_would);

void test_gemm_activates_and_multiplies_as_a_second_op_would() {
  for_each_target_and_emulated([](const KernelTable& table) {
    const int64_t width = table.panel_width;
    for (DType type : kTypes) {
      for (Activation kind :
           {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kGeluQuick}) {
        for (int64_t half : {int64_t{3}, width, 2 * width + 1}) {
          for (int64_t m : {1, 2, 5, 13}) {
            const Problem problem(type, m, 2 * half, 29, false, 2);
            const Buffer packed = problem.pack(table);
            Buffer product(type, m, 2 * half), expected(type, m, half, half + 5);
            Buffer got(type, m, half, half + 5);
            problem.run(table, problem.args(packed, product, true), {0, m}, m, 2);
            const ActivationArgs second{product.data(),
                                        product.stride(),
                                        expected.data(),
                                        expected.stride(),
                                        half,
                                        kind,
                                        true,
                                        false};
            table.activation(type, second, {0, m});
            GemmArgs args = problem.args(packed, got, true);
            args.epilogue.gated = true;
            args.epilogue.activation = kind;
            problem.run(table, args, {0, m}, m, m == 5 ? 2 : problem.panels(table));
            // In fp32 the compiler may contract the two copies of an activation differently.
            const double slack = type == DType::kFloat32 ? 0x1p-21 : 0.0;
            for (int64_t r = 0; r < m; ++r)
              for (int64_t c = 0; c < half; ++c)
                expect(std::fabs(got.get(r, c) - expected.get(r, c)) <=
                           slack * std::fabs(expected.get(r, c)),
                       "%s %lld rows of %lld columns: %a instead of %a", name_of(type),
                       static_cast<long long>(m), static_cast<long long>(half),
                       static_cast<double>(got.get(r, c)), static_cast<double>(expected.get(r, c)));
            got.check_guards("gated");
          }
        }
      }
    }
  });
}
const Registration i("gemm/test_gemm_activates_and_multiplies_as_a_second_op_would",
                     test_gemm_activates_and_multiplies_as_a_second_op_would);

// Bit for bit, subnormal numbers included: what the other tests run by definition is what the
// processor does.
void test_bf16_units_follow_their_definition() {
  for_each_target([](const KernelTable& table) {
    const KernelTable* definition = bf16_definition_of(table);
    if (!definition) {
      expect(true, "this target has none");
      return;
    }
    for (int64_t m : {1, 3, 16, 17, 41}) {
      for (int64_t k : {1, 31, 32, 300}) {
        Problem problem(DType::kBFloat16, m, table.panel_width + 3, k);
        for (int64_t i = 0; i < k; i += 7) problem.a.set(m / 2, i, 0x1p-70);
        for (int64_t i = 0; i < k; i += 5) problem.weight.set(1, i, 0x1p-60);
        problem.weight.set(2, 0, 0x1p-130);
        Buffer got(DType::kFloat32, m, problem.n), expected(DType::kFloat32, m, problem.n);
        for (const auto& [target, out] :
             {std::pair<const KernelTable*, Buffer*>{&table, &got}, {definition, &expected}}) {
          const Buffer packed = problem.pack(*target);
          problem.run(*target, problem.args(packed, *out, true), {0, m}, m,
                      problem.panels(*target));
        }
        expect(got == expected, "%lld rows %lld deep", static_cast<long long>(m),
               static_cast<long long>(k));
      }
    }
  });
}
const Registration j("gemm/test_bf16_units_follow_their_definition",
                     test_bf16_units_follow_their_definition);

}  // namespace
}  // namespace cpu_backend::test

// The vector vocabulary of isa/vec.h on every target, against scalar C++.
#include "harness.h"
#include "probe.h"

namespace cpu_backend::test {
namespace {

void for_each_probe(const std::function<void(const Probe&)>& run) {
  for_each_target([&](const KernelTable& table) { run(probe_of(table.target)); });
}

bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : float_bits(a) == float_bits(b);
}

void test_vec_widens_every_half() {
  Buffer bf16(DType::kBFloat16, 1, 65536), fp16(DType::kFloat16, 1, 65536);
  for (uint32_t u = 0; u < 65536; ++u) {
    bf16.set_bits(0, u, u);
    fp16.set_bits(0, u, u);
  }
  for_each_probe([&](const Probe& probe) {
    Buffer wide(DType::kFloat32, 1, 65536);
    probe.widen_bf16(bf16.data(), static_cast<float*>(wide.data()), 65536);
    for (uint32_t u = 0; u < 65536; ++u)
      expect(same(wide.get(0, u), to_float(static_cast<bf16_t>(u))), "bf16 %04x is %a", u,
             static_cast<double>(wide.get(0, u)));
    probe.widen_fp16(fp16.data(), static_cast<float*>(wide.data()), 65536);
    for (uint32_t u = 0; u < 65536; ++u)
      expect(same(wide.get(0, u), to_float(static_cast<fp16_t>(u))), "fp16 %04x is %a", u,
             static_cast<double>(wide.get(0, u)));
  });
}
const Registration a("vec/test_vec_widens_every_half", test_vec_widens_every_half);

// Every half value with its ties and their neighbours, all fp32 exponents, NaNs with any payload.
std::vector<float> rounding_cases() {
  std::vector<float> x;
  Random random(11);
  const uint32_t step = kEmulated ? 7 : 1;  // odd: reaches even and odd last bits
  for (uint32_t u = 0; u < 65536; u += step) {
    const uint32_t bf16 = u << 16;
    for (uint32_t low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(bits_float(bf16 | low));
    const uint32_t fp16 = float_bits(to_float(static_cast<fp16_t>(u)));
    for (uint32_t low : {0x0000u, 0x0fffu, 0x1000u, 0x1001u}) x.push_back(bits_float(fp16 + low));
    x.push_back(bits_float(static_cast<uint32_t>(random.bits())));
  }
  // Ties between fp16 subnormals: odd multiples of 2^-25 and their neighbours.
  for (uint32_t n = 1; n < 2048; n += 2 * step) {
    const float tie = static_cast<float>(n) * 0x1p-25f;
    for (float y : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1.0f)}) {
      x.push_back(y);
      x.push_back(-y);
    }
  }
  return x;
}

void test_vec_narrows_like_the_scalar_definition() {
  const std::vector<float> x = rounding_cases();
  const int64_t n = static_cast<int64_t>(x.size());
  for_each_probe([&](const Probe& probe) {
    Buffer bf16(DType::kBFloat16, 1, n), fp16(DType::kFloat16, 1, n);
    probe.narrow_bf16(x.data(), bf16.data(), n);
    probe.narrow_fp16(x.data(), fp16.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const float value = x[static_cast<size_t>(i)];
      // Which NaN it becomes is the hardware's choice; that it stays one is not.
      const auto agree = [&](uint32_t got, uint32_t expected, float back) {
        return value != value ? back != back : got == expected;
      };
      expect(agree(bf16.bits(0, i), static_cast<uint32_t>(round_to_bf16(value)), bf16.get(0, i)),
             "bf16 of %08x is %04x", float_bits(value), bf16.bits(0, i));
      expect(agree(fp16.bits(0, i), static_cast<uint32_t>(round_to_fp16(value)), fp16.get(0, i)),
             "fp16 of %08x is %04x", float_bits(value), fp16.bits(0, i));
    }
    bf16.check_guards("narrow_bf16");
    fp16.check_guards("narrow_fp16");
  });
}
const Registration b("vec/test_vec_narrows_like_the_scalar_definition",
                     test_vec_narrows_like_the_scalar_definition);

void test_vec_arithmetic_matches_scalar() {
  Random random(12);
  for_each_probe([&](const Probe& probe) {
    for (int64_t n : odd_sizes()) {
      Buffer x(DType::kFloat32, 1, n), z(DType::kFloat32, 1, n);
      x.fill(random, -4.0, 4.0);
      z.fill(random, -4.0, 4.0);
      x.set(0, n / 2, z.get(0, n / 2));  // one pair of equals
      const float* u = static_cast<const float*>(x.data());
      const float* v = static_cast<const float*>(z.data());
      const auto check = [&](const char* name, auto op, auto expected) {
        Buffer y(DType::kFloat32, 1, n);
        op(static_cast<float*>(y.data()));
        for (int64_t i = 0; i < n; ++i)
          expect(same(y.get(0, i), expected(u[i], v[i])), "%s of %lld, entry %lld: %a", name,
                 static_cast<long long>(n), static_cast<long long>(i),
                 static_cast<double>(y.get(0, i)));
        y.check_guards(name);
      };
      check(
          "max", [&](float* y) { probe.max(u, v, y, n); },
          [](float p, float q) { return p > q ? p : q; });
      check(
          "min", [&](float* y) { probe.min(u, v, y, n); },
          [](float p, float q) { return p < q ? p : q; });
      check(
          "select", [&](float* y) { probe.select_less(u, v, y, n); },
          [](float p, float q) { return p < q ? p : 7.0f; });
      check(
          "abs", [&](float* y) { probe.abs(u, y, n); },
          [](float p, float) { return std::fabs(p); });
      Buffer y(DType::kFloat32, 1, n);
      probe.multiply_add(u, v, static_cast<float*>(y.data()), n);
      Compare compare(DType::kFloat32, "multiply_add");  // fused or not: the target's choice
      for (int64_t i = 0; i < n; ++i) {
        const double exact = static_cast<double>(u[i]) * v[i];
        compare.add_bounded(y.get(0, i), exact + 1.0, std::fabs(exact) * 0x1p-24);
      }
      compare.check();
    }
  });
}
const Registration c("vec/test_vec_arithmetic_matches_scalar", test_vec_arithmetic_matches_scalar);

void test_vec_reductions_and_lane_numbers() {
  Random random(13);
  for_each_probe([&](const Probe& probe) {
    const int lanes = probe.lanes;
    for (int hot = 0; hot < lanes; ++hot) {
      // Integers: the sum is exact in any order, so a lane lost or doubled shows.
      std::vector<float> x(static_cast<size_t>(lanes));
      float sum = 0.0f;
      for (int i = 0; i < lanes; ++i) {
        x[static_cast<size_t>(i)] = static_cast<float>(random.below(1000) - 2000);
        if (i == hot) x[static_cast<size_t>(i)] = -1.0f;
        sum += x[static_cast<size_t>(i)];
      }
      expect(probe.sum_lanes(x.data()) == sum, "sum_lanes");
      expect(probe.max_lanes(x.data()) == -1.0f, "max_lanes misses lane %d", hot);
    }
    std::vector<int32_t> index(static_cast<size_t>(lanes));
    std::vector<float> same_value(static_cast<size_t>(lanes));
    probe.lane_index(-3, index.data());
    for (float value : {0.0f, -1.5f, HUGE_VALF}) {
      probe.broadcast(value, same_value.data());
      for (int i = 0; i < lanes; ++i) {
        expect(index[static_cast<size_t>(i)] == i - 3, "lane_index %d", i);
        expect(same_value[static_cast<size_t>(i)] == value, "broadcast lane %d", i);
      }
    }
  });
}
const Registration d("vec/test_vec_reductions_and_lane_numbers",
                     test_vec_reductions_and_lane_numbers);

void test_vec_partial_touches_only_its_lanes() {
  for_each_probe([&](const Probe& probe) {
    for (int n = 0; n <= probe.lanes; ++n) {
      Buffer x(DType::kFloat32, 1, n), lanes(DType::kFloat32, 1, probe.lanes);
      for (int i = 0; i < n; ++i) x.set(0, i, i + 1);
      float* all = static_cast<float*>(lanes.data());
      probe.load_partial(static_cast<const float*>(x.data()), all, n);
      for (int i = 0; i < probe.lanes; ++i)
        expect(all[i] == (i < n ? static_cast<float>(i + 1) : 0.0f), "load_partial(%d) lane %d", n,
               i);
      Buffer y(DType::kFloat32, 1, n);
      probe.store_partial(all, static_cast<float*>(y.data()), n);
      for (int i = 0; i < n; ++i)
        expect(y.get(0, i) == static_cast<float>(i + 1), "store_partial(%d) lane %d", n, i);
      y.check_guards("store_partial");
    }
  });
}
const Registration e("vec/test_vec_partial_touches_only_its_lanes",
                     test_vec_partial_touches_only_its_lanes);

}  // namespace
}  // namespace cpu_backend::test

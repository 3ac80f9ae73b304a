// Token choice: the largest logit, and one draw from the softmax.
#include "harness.h"
#include "probe.h"

namespace cpu_backend::test {
namespace {

int64_t lowest_maximum(const Buffer& x) {
  int64_t best = 0;
  float value = -HUGE_VALF;
  for (int64_t i = 0; i < x.columns(); ++i) {
    if (x.get(0, i) > value) {
      value = x.get(0, i);
      best = i;
    }
  }
  return best;
}

void test_argmax_finds_every_position() {
  for_each_target([](const KernelTable& table) {
    for (DType type : kTypes) {
      for (int64_t size : odd_sizes()) {
        Random random(static_cast<uint64_t>(size));
        Buffer x(type, 1, size);
        x.fill(random, -8.0, -1.0);
        for (int64_t at = 0; at < size; ++at) {
          const uint32_t kept = x.bits(0, at);
          x.set(0, at, -0.5);  // all negative: a zero from a padded lane would win
          const int64_t got = table.argmax_row(type, x.data(), size);
          expect(got == at, "%s size %lld: %lld instead of %lld", name_of(type),
                 static_cast<long long>(size), static_cast<long long>(got),
                 static_cast<long long>(at));
          x.set_bits(0, at, kept);
        }
      }
    }
  });
}
const Registration a("sample/test_argmax_finds_every_position", test_argmax_finds_every_position);

void test_argmax_takes_lowest_index_of_ties() {
  for_each_target([](const KernelTable& table) {
    Random random(41);
    for (int64_t repeat = 0; repeat < reps(2000); ++repeat) {
      const DType type = kTypes[repeat % 3];
      Buffer x(type, 1, 1 + random.below(80));
      // Few distinct values, zeros of both signs, infinities and NaN among them.
      const double values[] = {0.0, -0.0, 1.0, -1.0, 2.0, -HUGE_VAL, std::nan(""), HUGE_VAL};
      const int64_t kinds = 3 + random.below(6);
      for (int64_t i = 0; i < x.columns(); ++i) x.set(0, i, values[random.below(kinds)]);
      const int64_t got = table.argmax_row(type, x.data(), x.columns());
      const int64_t expected = lowest_maximum(x);
      expect(got == expected, "%s size %lld: %lld instead of %lld", name_of(type),
             static_cast<long long>(x.columns()), static_cast<long long>(got),
             static_cast<long long>(expected));
    }
  });
}
const Registration b("sample/test_argmax_takes_lowest_index_of_ties",
                     test_argmax_takes_lowest_index_of_ties);

void test_choice_without_candidates_is_the_first() {
  for_each_target([](const KernelTable& table) {
    for (double filler : {std::nan(""), -HUGE_VAL}) {
      for (int64_t size : odd_sizes()) {
        Buffer x(DType::kFloat32, 1, size);
        for (int64_t i = 0; i < size; ++i) x.set(0, i, filler);
        expect(table.argmax_row(DType::kFloat32, x.data(), size) == 0, "argmax of %g", filler);
        expect(table.gumbel_argmax_row(DType::kFloat32, x.data(), size, 3) == 0, "gumbel of %g",
               filler);
      }
    }
  });
}
const Registration c("sample/test_choice_without_candidates_is_the_first",
                     test_choice_without_candidates_is_the_first);

// Pearson's statistic of `counts` against `probabilities`, minus its mean, in standard deviations.
double chi_square_sigmas(const std::vector<int64_t>& counts, const std::vector<double>& p) {
  double total = 0.0;
  for (int64_t count : counts) total += static_cast<double>(count);
  double statistic = 0.0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = total * p[i];
    statistic += (static_cast<double>(counts[i]) - expected) *
                 (static_cast<double>(counts[i]) - expected) / expected;
  }
  const double freedom = static_cast<double>(p.size()) - 1.0;
  return (statistic - freedom) / std::sqrt(2.0 * freedom);
}

void test_gumbel_draws_from_the_softmax() {
  for_each_target([](const KernelTable& table) {
    for (int64_t size : {2, 5, 17, 40}) {
      for (int high = 0; high < 2; ++high) {  // seeds that differ in their low or high half
        Random random(static_cast<uint64_t>(size));
        Buffer x(DType::kFloat32, 1, size);
        x.fill(random, -1.5, 1.5);
        std::vector<double> p;
        double sum = 0.0;
        for (int64_t i = 0; i < size; ++i) sum += std::exp(x.get(0, i));
        for (int64_t i = 0; i < size; ++i) p.push_back(std::exp(x.get(0, i)) / sum);
        std::vector<int64_t> counts(p.size());
        const int64_t draws = reps(60000);
        for (int64_t draw = 0; draw < draws; ++draw) {
          const uint64_t seed = static_cast<uint64_t>(draw) << (high ? 32 : 0);
          const int64_t at = table.gumbel_argmax_row(DType::kFloat32, x.data(), size, seed);
          if (!expect(at >= 0 && at < size, "drew %lld of %lld", static_cast<long long>(at),
                      static_cast<long long>(size)))
            return;
          ++counts[static_cast<size_t>(at)];
        }
        const double sigmas = chi_square_sigmas(counts, p);
        expect(sigmas < 5.0, "size %lld: chi-square is %.1f sigmas above its mean",
               static_cast<long long>(size), sigmas);
      }
    }
  });
}
const Registration d("sample/test_gumbel_draws_from_the_softmax",
                     test_gumbel_draws_from_the_softmax);

// argmax(x + g) with g from the same uniforms, in double; a near tie may go either way.
void test_gumbel_is_argmax_of_noisy_logits() {
  for_each_target([](const KernelTable& table) {
    const Probe& probe = probe_of(table.target);
    for (DType type : kTypes) {
      for (int64_t size : odd_sizes()) {
        for (uint64_t seed = 0; seed < static_cast<uint64_t>(reps(40)); ++seed) {
          Random random(seed);
          const uint64_t key = random.bits();
          Buffer x(type, 1, size), u(DType::kFloat32, 1, size);
          x.fill(random, -3.0, 3.0);
          x.set(0, size / 3, std::nan(""));
          probe.uniform(0, key, static_cast<float*>(u.data()), size);
          double best = -HUGE_VAL;
          const auto noisy = [&](int64_t i) {
            return x.get(0, i) - std::log(-std::log(static_cast<double>(u.get(0, i))));
          };
          for (int64_t i = 0; i < size; ++i)
            if (noisy(i) > best) best = noisy(i);
          const int64_t got = table.gumbel_argmax_row(type, x.data(), size, key);
          // -log(u) of u near 1 is a few 2^-24: its logarithm keeps few digits of the draw's own
          // position, but a difference of 1e-4 in the sum is never rounding.
          expect(size == 1 || noisy(got) >= best - 1e-4,
                 "%s size %lld: column %lld has %g, the best %g", name_of(type),
                 static_cast<long long>(size), static_cast<long long>(got), noisy(got), best);
        }
      }
    }
  });
}
const Registration e("sample/test_gumbel_is_argmax_of_noisy_logits",
                     test_gumbel_is_argmax_of_noisy_logits);

void test_uniform_is_open_and_even() {
  std::vector<float> first;
  for_each_target([&](const KernelTable& table) {
    const Probe& probe = probe_of(table.target);
    constexpr int kBins = 64;
    const std::vector<double> p(kBins, 1.0 / kBins);
    for (uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{1} << 32}) {
      std::vector<float> u(static_cast<size_t>(reps(1 << 18)));
      probe.uniform(0, seed, u.data(), static_cast<int64_t>(u.size()));
      std::vector<int64_t> counts(kBins);
      for (float x : u) {
        if (!expect(x > 0.0f && x < 1.0f, "uniform gave %a", static_cast<double>(x))) return;
        ++counts[static_cast<size_t>(x * kBins)];
      }
      expect(chi_square_sigmas(counts, p) < 5.0, "uneven for seed %llx",
             static_cast<unsigned long long>(seed));
      if (seed != 1) continue;
      if (first.empty()) first = u;
      expect(first == u, "targets draw different numbers from one seed");
    }
    // The same column under successive seeds, as the draws of one request are.
    std::vector<int64_t> counts(kBins);
    for (uint64_t seed = 0; seed < static_cast<uint64_t>(reps(40000)); ++seed) {
      float x;
      probe.uniform(12345, seed, &x, 1);
      ++counts[static_cast<size_t>(x * kBins)];
    }
    expect(chi_square_sigmas(counts, p) < 5.0, "uneven over seeds");
  });
}
const Registration f("sample/test_uniform_is_open_and_even", test_uniform_is_open_and_even);

}  // namespace
}  // namespace cpu_backend::test

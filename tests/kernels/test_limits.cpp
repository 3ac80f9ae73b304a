// The yardsticks of benchmarks do all the work they are credited with.
#include "harness.h"

namespace cpu_backend::test {
namespace {

void test_read_bytes_reads_every_word() {
  for_each_target([](const KernelTable& table) {
    Random random(5);
    for (int64_t words : {0, 1, 3, 15, 16, 17, 63, 64, 65, 67, 255, 256, 259, 4099}) {
      std::vector<uint32_t> data(static_cast<size_t>(words) + 1);
      uint32_t expected = 0;
      for (int64_t i = 0; i < words; ++i)
        expected ^= data[static_cast<size_t>(i)] = static_cast<uint32_t>(random.bits());
      data.back() = 0x5a5a5a5au;
      const uint32_t got = table.read_bytes(data.data(), 4 * words);
      expect(got == expected, "%lld words: %08x instead of %08x", static_cast<long long>(words),
             got, expected);
    }
  });
}
const Registration a("limits/test_read_bytes_reads_every_word", test_read_bytes_reads_every_word);

void test_multiply_adds_runs_every_chain() {
  for_each_target([](const KernelTable& table) {
    for (int64_t steps : {0, 1, 2, 37}) {
      float got = -1.0f;
      const int64_t operations = table.multiply_adds(steps, 0.5f, &got);
      const int64_t lanes = table.panel_width / 2;
      const int64_t chains = steps > 0 ? operations / (2 * steps * lanes) : 12;
      expect(operations == 2 * steps * lanes * chains && chains >= 8,
             "%lld operations in %lld steps", static_cast<long long>(operations),
             static_cast<long long>(steps));
      double expected = 0.0;  // halves of small integers: exact
      for (int64_t i = 0; i < chains; ++i) {
        double x = static_cast<double>(i);
        for (int64_t s = 0; s < steps; ++s)
          x = static_cast<double>(static_cast<float>(x * 0.5 + 1.0));
        expected += x * static_cast<double>(lanes);
      }
      expect(std::fabs(got - expected) <= 1e-5 * expected, "%lld steps: %g instead of %g",
             static_cast<long long>(steps), static_cast<double>(got), expected);
    }
  });
}
const Registration b("limits/test_multiply_adds_runs_every_chain",
                     test_multiply_adds_runs_every_chain);

}  // namespace
}  // namespace cpu_backend::test

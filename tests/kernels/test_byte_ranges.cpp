// Sets of bytes against one flag per byte.
#include "core/byte_ranges.h"

#include "harness.h"

namespace cpu_backend::test {
namespace {

constexpr uintptr_t kBytes = 40;

void check(const ByteRanges& ranges, const std::vector<bool>& flags) {
  for (uintptr_t begin = 0; begin < kBytes; ++begin)
    for (uintptr_t end = begin; end <= kBytes; ++end) {
      std::vector<bool> missing(kBytes, false);
      uintptr_t last = begin;
      for (const ByteRange& part : ranges.missing({begin, end})) {
        expect(part.begin >= last && part.begin < part.end && part.end <= end,
               "parts are out of order or outside");
        for (uintptr_t i = last = part.begin; i < part.end; ++i) missing[i] = true;
      }
      bool all = true;
      for (uintptr_t i = begin; i < end; ++i) {
        expect(missing[i] == !flags[i], "byte %d of [%d, %d) is told wrongly", static_cast<int>(i),
               static_cast<int>(begin), static_cast<int>(end));
        all = all && flags[i];
      }
      expect(ranges.contains({begin, end}) == all, "containing is told wrongly");
    }
}

void test_ranges_hold_what_was_added_and_not_removed() {
  Random random(20);
  for (int round = 0; round < 20; ++round) {
    ByteRanges ranges;
    std::vector<bool> flags(kBytes, false);
    for (int change = 0; change < 12; ++change) {
      const auto a = static_cast<uintptr_t>(random.uniform(0.0, kBytes));
      const auto b = static_cast<uintptr_t>(random.uniform(0.0, kBytes));
      const ByteRange range{a < b ? a : b, a < b ? b : a};
      const bool added = random.uniform(0.0, 1.0) < 0.6;
      if (added) {
        ranges.add(range);
      } else {
        ranges.remove(range);
      }
      for (uintptr_t i = range.begin; i < range.end; ++i) flags[i] = added;
      check(ranges, flags);
    }
  }
}
const Registration a("byte_ranges/test_ranges_hold_what_was_added_and_not_removed",
                     test_ranges_hold_what_was_added_and_not_removed);

}  // namespace
}  // namespace cpu_backend::test

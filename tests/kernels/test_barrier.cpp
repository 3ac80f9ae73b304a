// No thread leaves a meeting before all have come, whatever their number.
#include "core/barrier.h"

#include <thread>

#include "harness.h"

namespace cpu_backend::test {
namespace {

void test_all_meet_before_any_goes_on() {
  constexpr int kRounds = 200;
  for (int parties : {1, 2, 7, 8, 9, 16, 17, 40}) {
    SpinBarrier barrier(parties + 9);  // room for more threads than come
    std::vector<int64_t> steps(static_cast<size_t>(parties) * 16, 0);
    int64_t lasts = 0;
    std::atomic<int64_t> early{0};
    const auto thread = [&](int me) {
      for (int64_t round = 1; round <= kRounds; ++round) {
        steps[static_cast<size_t>(me) * 16] = round;
        barrier.wait(parties, me, [&] { ++lasts; });
        // Plain reads: the barrier must order them, and the others must not be a round ahead.
        bool all_here = lasts == 2 * round - 1;
        for (int other = 0; other < parties; ++other)
          all_here = all_here && steps[static_cast<size_t>(other) * 16] == round;
        if (!all_here) early.fetch_add(1);
        barrier.wait(parties, me, [&] { ++lasts; });
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(static_cast<size_t>(parties));
    for (int me = 0; me < parties; ++me) threads.emplace_back(thread, me);
    for (std::thread& one : threads) one.join();
    expect(early.load() == 0, "%d threads: left %lld times before all had come", parties,
           static_cast<long long>(early.load()));
    expect(lasts == 2 * kRounds, "%d threads: the last one's work ran %lld times", parties,
           static_cast<long long>(lasts));
  }
}

const Registration a("barrier/test_all_meet_before_any_goes_on", test_all_meet_before_any_goes_on);

}  // namespace
}  // namespace cpu_backend::test

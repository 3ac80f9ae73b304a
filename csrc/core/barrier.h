// A barrier for threads that own a core each and meet again within microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/machine.h"
#include "core/slice.h"
#include "isa/relax.h"

namespace cpu_backend {

// Threads meet in groups of neighbours, the last of each group meets those of the others, and lets
// its own group go: a combining tree of two levels (Yew, Tzeng and Lawrie, 1987).  On one counter
// 128 threads would take 127 turns; here the longest way is 7 + 15, and a line is watched by as
// few. Threads are bound in the order of cores, so a group mostly shares a last-level cache.
class SpinBarrier {
 public:
  explicit SpinBarrier(int most_parties) : groups_(ceil_div(most_parties, kGroup)) {}

  // Returns once threads 0 to `parties` - 1 have called; the last one runs `last` before any goes
  // on.
  template <class F>
  void wait(int parties, int me, const F& last) {
    const int group = me / kGroup;
    const int groups = static_cast<int>(ceil_div(parties, kGroup));
    const int members = group + 1 < groups ? kGroup : parties - group * kGroup;
    groups_[group].wait(members, [&] {
      if (groups == 1) {
        last();
      } else {
        root_.wait(groups, last);
      }
    });
  }

 private:
  // Counter with a generation number.  Threads spin for some 50 microseconds, then yield: a
  // neighbour that shares the core gets to run instead of being waited for.
  class Meeting {
   public:
    template <class F>
    void wait(int parties, const F& last) {
      const uint32_t generation = generation_.load(std::memory_order_acquire);
      if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties) {
        arrived_.store(0, std::memory_order_relaxed);
        last();
        generation_.store(generation + 1, std::memory_order_release);
        return;
      }
      for (int i = 0; generation_.load(std::memory_order_acquire) == generation; ++i) {
        if (i < kSpins) {
          relax_cpu();
        } else {
          std::this_thread::yield();
        }
      }
    }

   private:
    static constexpr int kSpins = 4096;
    alignas(kCacheLine) std::atomic<int> arrived_{0};
    alignas(kCacheLine) std::atomic<uint32_t> generation_{0};
  };

  static constexpr int kGroup = 8;
  std::vector<Meeting> groups_;
  Meeting root_;
};

}  // namespace cpu_backend

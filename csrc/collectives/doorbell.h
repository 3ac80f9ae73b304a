// Waiting for another process without starving it: spin, then yield, then sleep on a futex.
//
// A Doorbell lies in shared memory beside the counters it announces.  Whoever changes a counter
// calls ring(), which costs one fence while nobody sleeps.  Ranks that have a core each meet within
// the spin; ranks that share a core give it away instead of burning it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/machine.h"
#include "isa/relax.h"

namespace cpu_backend::collectives {

// About 10 microseconds of pauses: ranks that compute the same thing arrive that close together.
constexpr int kSpins = 256;
// Yielding keeps the wake-up short and lets the owner of the core run; a wait longer than this is a
// pipeline stage or an idle peer, and then a core is worth more than the 50 microseconds of a wake.
constexpr std::chrono::microseconds kYield{500};
// How often a sleeper looks whether its peers still live.
constexpr std::chrono::milliseconds kNap{100};

struct alignas(kCacheLine) Doorbell {
  std::atomic<uint32_t> rings{0};
  std::atomic<uint32_t> sleepers{0};

  // Call it after the store that others wait for.
  void ring() {
    // Orders that store before the look at `sleepers`; wait() has the mirror image.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_relaxed) != 0) wake();
  }

  // True once ready() is; false as soon as alive() is not, which is asked before every nap.
  template <class Ready, class Alive>
  bool wait(const Ready& ready, const Alive& alive) {
    if (spin(ready)) return true;
    const auto until = std::chrono::steady_clock::now() + kYield;
    do {
      yield();
      if (ready()) return true;
    } while (std::chrono::steady_clock::now() < until);
    while (alive()) {
      sleepers.fetch_add(1, std::memory_order_seq_cst);
      const uint32_t heard = rings.load(std::memory_order_seq_cst);
      const bool done = ready();
      if (!done) nap(heard);
      sleepers.fetch_sub(1, std::memory_order_relaxed);
      if (done || ready()) return true;
    }
    return ready();
  }

 private:
  template <class Ready>
  static bool spin(const Ready& ready) {
    for (int i = 0; i < kSpins; ++i) {
      if (ready()) return true;
      relax_cpu();
    }
    return false;
  }

  static void yield();
  void nap(uint32_t heard);  // until the next ring, kNap at most
  void wake();
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "a futex is a plain word");

}  // namespace cpu_backend::collectives

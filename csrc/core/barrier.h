// A barrier for threads that own a core each and meet again within microseconds.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace cpu_backend {

inline void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Central counter with a generation number.  Threads spin for some 50 microseconds, then yield: a
// neighbour that shares the core gets to run instead of being waited for.
class SpinBarrier {
 public:
  // Returns once `parties` threads have called; the last one runs `last` before any goes on.
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
        relax_core();
      } else {
        sched_yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 4096;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> generation_{0};
};

}  // namespace cpu_backend

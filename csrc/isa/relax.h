// One breath inside a spinning wait.  Needs no target: it is the same for all code of a CPU family.
#pragma once

namespace cpu_backend {

// Tells the core that it spins: the sibling hyper-thread runs on, the loop leaves in order.
static inline void relax_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on server cores; this takes ~10 ns
#else
  asm volatile("" ::: "memory");
#endif
}

}  // namespace cpu_backend

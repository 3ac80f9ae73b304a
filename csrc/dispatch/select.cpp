#include "dispatch/select.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "system/system.h"

namespace cpu_backend {

#define TARGET(name, ...) extern const KernelTable* const k_##name##_table;
#include "dispatch/targets.def"

namespace {

#if defined(__x86_64__)
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  Cpuid(unsigned leaf, unsigned subleaf) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
  }
};

// Whether the system saves the registers of `mask` (bits of XCR0) for this process.
bool system_saves(unsigned mask) {
  constexpr unsigned kXgetbv = 1u << 27, kTiles = 0x60000;
  if (!(Cpuid(1, 0).ecx & kXgetbv)) return false;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask && (!(mask & kTiles) || system::grants_tiles());
}

bool is_set(unsigned word, int bit) { return word >> bit & 1; }
#endif

std::vector<Target> find_targets() {
  std::vector<Target> found;
  constexpr bool on_baseline = true;
#if defined(__x86_64__)
#define FEATURE(name, leaf, subleaf, reg, bit, mask) \
  const bool name = is_set(Cpuid(leaf, subleaf).reg, bit) && system_saves(mask);
#else
#define FEATURE(name, word, bit, apple_name) \
  const bool name = system::has_feature(word, bit, apple_name);
#endif
// The table has the best last.
#define TARGET(name, base, flags, features, cpu, areas, what) \
  const bool on_##name = on_##base && (features);             \
  found.insert(found.begin(), {#name, k_##name##_table, on_##name});
#include "dispatch/targets.def"
  return found;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = find_targets();
  return all;
}

const KernelTable* select_table(const char* requested, std::string* error) {
  const std::string wanted = requested ? requested : "";
  std::string runnable;
  for (const Target& target : targets()) {
    if (!target.runnable) continue;
    if (wanted.empty() || wanted == target.name) return target.table;
    runnable += (runnable.empty() ? "" : ", ") + std::string(target.name);
  }
  *error = "CPU_BACKEND_ISA=" + wanted + " is not available: this CPU and build can run " +
           runnable + "; unset CPU_BACKEND_ISA to take the best of them.";
  return nullptr;
}

}  // namespace cpu_backend

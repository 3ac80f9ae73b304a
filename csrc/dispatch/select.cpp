#include "dispatch/select.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

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

// The 8 KiB of state that AMX's tiles add to every context switch: Linux grants them only on
// request (arch_prctl), for all threads to come.
bool system_grants_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// Whether the system saves the registers of `mask` (bits of XCR0) for this process.
bool system_saves(unsigned mask) {
  constexpr unsigned kXgetbv = 1u << 27, kTiles = 0x60000;
  if (!(Cpuid(1, 0).ecx & kXgetbv)) return false;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & mask) == mask && (!(mask & kTiles) || system_grants_tiles());
}
#endif

[[maybe_unused]] bool is_set(unsigned long word, int bit) { return word >> bit & 1; }

std::vector<Target> find_targets() {
  std::vector<Target> found;
  constexpr bool on_baseline = true;
#if defined(__x86_64__)
#define FEATURE(name, leaf, subleaf, reg, bit, mask) \
  const bool name = is_set(Cpuid(leaf, subleaf).reg, bit) && system_saves(mask);
#elif defined(__linux__)
#define FEATURE(name, word, bit) const bool name = is_set(getauxval(word), bit);
#else
#define FEATURE(name, word, bit) constexpr bool name = false;
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

#include "dispatch/select.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace cpu_backend {

#if defined(__x86_64__)
extern const KernelTable* const k_amx_table;
extern const KernelTable* const k_avx512_bf16_table;
extern const KernelTable* const k_avx512_vnni_table;
extern const KernelTable* const k_avx512_table;
extern const KernelTable* const k_avx2_vnni_table;
extern const KernelTable* const k_avx2_table;
#elif defined(__aarch64__)
extern const KernelTable* const k_neon_table;
#elif defined(__s390x__)
extern const KernelTable* const k_vxe_table;
#endif
extern const KernelTable* const k_scalar_table;

namespace {

#if defined(__x86_64__)
// The compiler's own feature test covers CPUID and whether the system saves the registers (XCR0).
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  Cpuid(unsigned leaf, unsigned subleaf) {
    __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx);
  }
};

bool has_avx2_vnni() { return has_avx2() && (Cpuid(7, 1).eax >> 4 & 1); }

// Every CPU with these has VNNI as well.
bool has_avx512_bf16() { return has_avx512_vnni() && (Cpuid(7, 1).eax >> 5 & 1); }

// The CPU has tiles for bf16, and the system grants this process the 8 KiB of state that they add
// to every context switch: Linux only on request (arch_prctl), for all threads to come.
bool has_amx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (!has_avx512_bf16() || (Cpuid(7, 0).edx & (kAmxBf16 | kAmxTile)) != (kAmxBf16 | kAmxTile))
    return false;
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
#if defined(__x86_64__)
      {"amx", k_amx_table, has_amx()},
      {"avx512_bf16", k_avx512_bf16_table, has_avx512_bf16()},
      {"avx512_vnni", k_avx512_vnni_table, has_avx512_vnni()},
      {"avx512", k_avx512_table, has_avx512()},
      {"avx2_vnni", k_avx2_vnni_table, has_avx2_vnni()},
      {"avx2", k_avx2_table, has_avx2()},
#elif defined(__aarch64__)
      {"neon", k_neon_table, true},
#elif defined(__s390x__)
      // The build's baseline is z14, so a CPU that loaded this library has the facility.
      {"vxe", k_vxe_table, true},
#endif
      {"scalar", k_scalar_table, true},
  };
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

#include <pthread.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "system/system.h"

// By their first versions: those of glibc 2.32 and 2.34 would keep the library from older systems.
#if defined(CPU_BACKEND_OLD_GLIBC)
#define CPU_BACKEND_OF_GLIBC(name, version) __asm__(".symver " #name ", " #name "@GLIBC_" version)
#if defined(__x86_64__)
CPU_BACKEND_OF_GLIBC(pthread_getattr_np, "2.2.5");
CPU_BACKEND_OF_GLIBC(pthread_attr_getstack, "2.2.5");
#elif defined(__aarch64__)
CPU_BACKEND_OF_GLIBC(pthread_getattr_np, "2.17");
CPU_BACKEND_OF_GLIBC(pthread_attr_getstack, "2.17");
#elif defined(__s390x__)
CPU_BACKEND_OF_GLIBC(pthread_getattr_np, "2.2.3");
CPU_BACKEND_OF_GLIBC(pthread_attr_getstack, "2.2");
#endif
#endif

namespace cpu_backend::system {

bool has_feature(int word, int bit, const char* /*apple_name*/) {
  return getauxval(word == 1 ? AT_HWCAP : AT_HWCAP2) >> bit & 1;
}

// Granted on request only, for all threads to come.
bool grants_tiles() {
#if defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool bind_thread(int64_t cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

std::string bind_memory(const std::vector<int64_t>& nodes) {
  // linux/mempolicy.h, spelled out so that the build needs no libnuma.
  constexpr int kPreferred = 1, kBind = 2;
  constexpr int64_t kBitsPerWord = 8 * sizeof(unsigned long);
  unsigned long mask[kMaxNodes / kBitsPerWord] = {};
  for (const int64_t node : nodes) mask[node / kBitsPerWord] |= 1ul << (node % kBitsPerWord);
  if (syscall(SYS_set_mempolicy, kBind, mask, kMaxNodes) == 0) return "bind";
  if (syscall(SYS_set_mempolicy, kPreferred, mask, kMaxNodes) == 0) return "preferred";
  return std::string("not possible: ") + std::strerror(errno);
}

void advise_large_pages(void* memory, size_t bytes) { madvise(memory, bytes, MADV_HUGEPAGE); }

int64_t large_page_bytes() {
  int64_t bytes = 0;
  std::ifstream("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") >> bytes;
  return bytes;
}

void discard(void* memory, size_t bytes) { madvise(memory, bytes, MADV_DONTNEED); }

ByteRange stack_of_this_thread() {
  pthread_attr_t attributes;
  void* begin = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &begin, &bytes);
    pthread_attr_destroy(&attributes);
  }
  return byte_range(begin, bytes);
}

}  // namespace cpu_backend::system

// What differs between CPUs and operating systems and is known when this is compiled: the order of
// bytes, the unit in which caches exchange memory, and the largest page.
#pragma once

#include <cstdint>

namespace cpu_backend {

static_assert(sizeof(void*) == 8, "32-bit systems are not served.");

constexpr bool kLittleEndian = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__;

// What two threads write stands as far apart.
#if defined(__s390x__)
constexpr int64_t kCacheLine = 256;
#elif defined(__APPLE__) && defined(__aarch64__)
constexpr int64_t kCacheLine = 128;
#else
constexpr int64_t kCacheLine = 64;
#endif

// Arm's kernels have pages of 4, 16 (Apple) or 64 KiB, others of 4: what is aligned to this, and as
// large as a multiple of it, consists of whole pages on all of them.
constexpr int64_t kLargestPage = 64 * 1024;

// Where memory of so many bytes begins in order to hold pages of `large` bytes (a power of two, or
// 0): at a multiple of that; where it holds none, of the largest power of two in it, as a CPU may
// still take a few small pages side by side for one (2 MiB of Arm's 64 KiB).
constexpr int64_t large_page_alignment(int64_t bytes, int64_t large) {
  while (large > bytes) large /= 2;
  return large > kLargestPage ? large : kLargestPage;
}

// And how much it is: whole pages of `large` bytes, if the last one is a small part of all.
constexpr int64_t large_page_size(int64_t bytes, int64_t large) {
  const int64_t page = large > kLargestPage && large <= bytes / 16 ? large : kLargestPage;
  return (bytes + page - 1) / page * page;
}

}  // namespace cpu_backend

// What only the operating system can do or tell.
//
// One file per system has the definitions: linux.cpp, macos.cpp, and other.cpp for all the rest;
// no_binding.cpp has what both of the latter do without.  CMake takes them by CPU_BACKEND_SYSTEM.
// Where a system cannot do a thing, its function says so and changes nothing, and all else runs.
// Tests     tests/kernels/test_system.cpp, on Linux with linux.cpp and with other.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/byte_ranges.h"

namespace cpu_backend::system {

// Whether the CPU has a feature of which only the system tells: bit `bit` of Linux's word AT_HWCAP
// (1) or AT_HWCAP2 (2), or macOS's hw.optional.arm.`apple_name`.
bool has_feature(int word, int bit, const char* apple_name);

// Whether this process may use the 8 KiB of state that AMX's tiles add to every context switch.
bool grants_tiles();

// From now on the calling thread runs on this CPU only.  False if the system refuses or cannot.
bool bind_thread(int64_t cpu);

// Nodes from 0 on that bind_memory knows.
constexpr int64_t kMaxNodes = 1024;
// Memory that this process touches from now on comes from these NUMA nodes: "bind", "preferred" or
// "not possible: " and the reason.  Every node is less than kMaxNodes.
std::string bind_memory(const std::vector<int64_t>& nodes);

// Memory that is going to be read front to back: larger pages, where there are some.
void advise_large_pages(void* memory, size_t bytes);

// The size of these, which begin at its multiples; 0 where the system has none or does not tell.
// Linux has 2 MiB where pages are of 4 KiB, 32 MiB where they are of 16, 512 MiB where of 64.
int64_t large_page_bytes();

// What is in these whole pages is not needed any more.  It may change, and the pages may go back to
// the system until they are written again.
void discard(void* memory, size_t bytes);

// Of the calling thread; empty where the system does not tell.
ByteRange stack_of_this_thread();

}  // namespace cpu_backend::system

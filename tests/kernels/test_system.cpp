// What a system does it does, and what it cannot do it refuses and changes nothing.  The same tests
// with the files of this system, and on Linux with those of systems of which nothing is known
// (CPU_BACKEND_EXPECTED_SYSTEM=other).
#include "system/system.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

#include "core/machine.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

bool is_other() {
  const char* expected = getenv("CPU_BACKEND_EXPECTED_SYSTEM");
  return expected && strcmp(expected, "other") == 0;
}

#if defined(__linux__)
void test_thread_runs_where_it_was_bound() {
  cpu_set_t before;
  if (!expect(sched_getaffinity(0, sizeof before, &before) == 0, "no affinity mask")) return;
  const bool allowed = sched_setaffinity(0, sizeof before, &before) == 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    std::thread([&] {
      const bool bound = system::bind_thread(cpu);
      expect(bound == (allowed && !is_other()), "CPU %d: bound is %d", cpu, bound);
      cpu_set_t after;
      sched_getaffinity(0, sizeof after, &after);
      if (bound) {
        expect(CPU_COUNT(&after) == 1 && CPU_ISSET(cpu, &after), "CPU %d: another mask", cpu);
        expect(sched_getcpu() == cpu, "runs on CPU %d, not on %d", sched_getcpu(), cpu);
      } else {
        expect(CPU_EQUAL(&after, &before), "CPU %d: refused, but the mask is another", cpu);
      }
    }).join();
  }
  for (const int64_t nowhere : {int64_t{-1}, int64_t{1} << 40})
    expect(!system::bind_thread(nowhere), "bound to CPU %lld", static_cast<long long>(nowhere));
}
const Registration a("system/test_thread_runs_where_it_was_bound",
                     test_thread_runs_where_it_was_bound);
#endif

void test_memory_binding_tells_its_outcome() {
  const std::string outcome = system::bind_memory({0});
  const bool refused = outcome.rfind("not possible: ", 0) == 0 && outcome.size() > 14;
  expect(refused || (!is_other() && (outcome == "bind" || outcome == "preferred")), "it says %s",
         outcome.c_str());
}
const Registration b("system/test_memory_binding_tells_its_outcome",
                     test_memory_binding_tells_its_outcome);

void test_discarded_pages_can_be_written_again() {
  constexpr int64_t kPages = 5, kBytes = kPages * kLargestPage;
  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  const std::unique_ptr<unsigned char, Free> memory(
      static_cast<unsigned char*>(std::aligned_alloc(kLargestPage, kBytes)));
  unsigned char* const data = memory.get();
  system::advise_large_pages(data, kBytes);
  memset(data, 7, kBytes);
  system::discard(data + kLargestPage, 3 * kLargestPage);
  for (int64_t i = 0; i < kBytes; ++i) {
    const bool inside = i >= kLargestPage && i < 4 * kLargestPage;
    const bool gone = data[i] != 7;
    if (gone && !inside) {
      expect(false, "byte %lld beside the pages has changed", static_cast<long long>(i));
      return;
    }
#if defined(__linux__)
    if (inside && gone == is_other()) {
      expect(false, "byte %lld is %d", static_cast<long long>(i), data[i]);
      return;
    }
#endif
  }
  memset(data, 9, kBytes);
  int64_t sum = 0;
  for (int64_t i = 0; i < kBytes; ++i) sum += data[i];
  expect(sum == 9 * kBytes, "what was written does not stay");
}
const Registration c("system/test_discarded_pages_can_be_written_again",
                     test_discarded_pages_can_be_written_again);

// Pages of 4, 16 and 64 KiB have large ones of 2, 32 and 512 MiB; 0 are none.
void test_memory_for_large_pages_holds_them_and_wastes_little() {
  constexpr int64_t kMiB = 1 << 20;
  for (const int64_t large : {int64_t{0}, kMiB, 2 * kMiB, 32 * kMiB, 512 * kMiB})
    for (const int64_t bytes : {int64_t{1}, 32 * kMiB, 33 * kMiB + 64, 600 * kMiB, 9000 * kMiB}) {
      const int64_t size = large_page_size(bytes, large);
      const int64_t alignment = large_page_alignment(size, large);
      const auto says = [&](bool holds, const char* what) {
        expect(holds, "%lld bytes, pages of %lld: %s", static_cast<long long>(bytes),
               static_cast<long long>(large), what);
      };
      says(size >= bytes && size % kLargestPage == 0, "another size");
      says(size - bytes <= std::max(kLargestPage, bytes / 16), "much is wasted");
      says(alignment % kLargestPage == 0 && (alignment & (alignment - 1)) == 0, "a part of a page");
      says(alignment <= std::max(size, kLargestPage), "aligned to more than there is");
      if (large && large <= bytes) says(alignment == large, "does not begin at a large page");
      if (bytes >= 32 * kMiB && large >= 2 * kMiB) says(alignment >= 2 * kMiB, "less than 2 MiB");
    }
}
const Registration f("system/test_memory_for_large_pages_holds_them_and_wastes_little",
                     test_memory_for_large_pages_holds_them_and_wastes_little);

#if defined(__linux__)
void test_large_pages_are_those_that_the_system_tells() {
  long long told = 0;
  if (FILE* const file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r")) {
    expect(fscanf(file, "%lld", &told) == 1, "the file has no number");
    fclose(file);
  }
  const long long bytes = system::large_page_bytes();
  expect(bytes == (is_other() ? 0 : told), "it says %lld, the system %lld", bytes, told);
}
const Registration g("system/test_large_pages_are_those_that_the_system_tells",
                     test_large_pages_are_those_that_the_system_tells);
#endif

void test_stack_holds_the_variables_of_its_thread_alone() {
  const int mine = 0;
  const auto address = reinterpret_cast<uintptr_t>(&mine);
  const ByteRange stack = system::stack_of_this_thread();
  if (is_other()) {
    expect(stack.size() == 0, "a stack is known");
    return;
  }
  expect(stack.contains(address), "a variable lies outside of the stack");
  std::thread([&] {
    const int own = 0;
    const ByteRange other = system::stack_of_this_thread();
    expect(other.contains(reinterpret_cast<uintptr_t>(&own)), "a thread's variable lies outside");
    expect(!other.contains(address), "the first thread's variable lies in another's stack");
  }).join();
}
const Registration d("system/test_stack_holds_the_variables_of_its_thread_alone",
                     test_stack_holds_the_variables_of_its_thread_alone);

void test_nothing_is_claimed_without_asking() {
  for (int word = 1; word <= 2; ++word)
    for (int bit = 0; bit < 64; ++bit)
      expect(!is_other() || !system::has_feature(word, bit, "FEAT_DotProd"),
             "feature %d of word %d is claimed", bit, word);
  expect(!is_other() || !system::grants_tiles(), "tiles are granted");
}
const Registration e("system/test_nothing_is_claimed_without_asking",
                     test_nothing_is_claimed_without_asking);

}  // namespace
}  // namespace cpu_backend::test

// Threads: torch's own OpenMP pool and nothing beside it.
//
// The two loops below also leave themselves in the open step recording, if there is one, and are
// then run again later: what they are given must be captured by value, and flat, so that the
// recording finds every pointer in it.
//
// The library is compiled with OpenMP but not linked to a runtime of its own: its symbols resolve
// to the runtime that libtorch_cpu brings, so there can be no second pool (see CMakeLists.txt).
#pragma once

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "core/machine.h"
#include "core/slice.h"
#include "dispatch/kernel_table.h"
#include "recording/step_recording.h"

namespace cpu_backend {

const KernelTable& kernels();  // library.cpp

// f(Slice) over [0, total) in equal parts of at least `grain`.
template <class F>
void parallel_slices(int64_t total, int64_t grain, const F& f) {
  static_assert(std::is_trivially_copyable_v<F>, "a recording looks for pointers in its bytes");
  if (total <= 0) return;
  if (StepRecording* recording = StepRecording::current()) recording->add_rows(total, grain, f);
  at::parallel_for(0, total, grain > 0 ? grain : 1,
                   [&](int64_t begin, int64_t end) { f(Slice{begin, end}); });
}

// Rows of `row_elements` each, so many per thread that waking it pays: some 10 microseconds.
inline int64_t row_grain(int64_t row_elements) {
  constexpr int64_t kElementsPerThread = 32768;
  return std::max<int64_t>(1, kElementsPerThread / std::max<int64_t>(1, row_elements));
}

// Scratch of the calling thread: grows, lives as long as the thread, aligned to a cache line.
inline float* thread_scratch(int64_t floats) {
  struct Free {
    void operator()(float* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<float, Free> buffer;
  thread_local int64_t capacity = 0;
  if (floats > capacity) {
    capacity = round_up(floats, 1024);
    buffer.reset(static_cast<float*>(std::aligned_alloc(kCacheLine, capacity * sizeof(float))));
    TORCH_CHECK(buffer, "out of memory for ", capacity * sizeof(float), " bytes of scratch.");
  }
  return buffer.get();
}

// f(item, scratch) for items 0, 1, ... count() - 1: each thread begins with its own, so that it
// finds in its caches what it left there, and goes on with the next free one.
template <class Count, class F>
void parallel_items(const Count& count, int64_t scratch_floats, const F& f) {
  static_assert(std::is_trivially_copyable_v<F> && std::is_trivially_copyable_v<Count>,
                "a recording looks for pointers in their bytes");
  if (StepRecording* recording = StepRecording::current())
    recording->add_items(count, scratch_floats, f);
  const int64_t items = count();
  const int64_t threads = std::min<int64_t>(items, at::get_num_threads());
  if (threads <= 0) return;
  std::atomic<int64_t> next{threads};
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    float* scratch = thread_scratch(scratch_floats);
    for (int64_t i = begin; i < end; ++i) f(i, scratch);
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) f(i, scratch);
  });
}

}  // namespace cpu_backend

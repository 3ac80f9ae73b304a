// Memory for packed weights, in huge pages where the system has them.
//
// A weight is read front to back in every step.  With 4 KiB pages the prefetcher stops and the TLB
// is asked at every page; with 2 MiB pages hardly ever.  Weights of small models are smaller than
// one huge page, so they share chunks that are aligned to one.
#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "core/machine.h"
#include "core/slice.h"
#include "system/system.h"

namespace cpu_backend {

class WeightMemory {
 public:
  // A tensor [count] on untouched memory; it keeps its chunk alive.
  static at::Tensor allocate(int64_t count, const at::TensorOptions& options) {
    static auto& memory = *new WeightMemory;
    const int64_t bytes = count * static_cast<int64_t>(options.dtype().itemsize());
    return memory.take(round_up(std::max<int64_t>(bytes, 1), kCacheLine), count, options);
  }

 private:
  static constexpr int64_t kHugePage = int64_t{2} << 20;
  static constexpr int64_t kChunkBytes = 16 * kHugePage;

  struct Chunk {
    char* data;
    int64_t size, used = 0;

    explicit Chunk(int64_t bytes)
        : data(static_cast<char*>(std::aligned_alloc(kHugePage, bytes))), size(bytes) {
      TORCH_CHECK_WITH(OutOfMemoryError, data, "out of memory for ", bytes, " bytes of weights.");
      system::advise_large_pages(data, static_cast<size_t>(bytes));
    }
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;
    ~Chunk() { std::free(data); }
  };

  at::Tensor take(int64_t bytes, int64_t count, const at::TensorOptions& options) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Chunk> chunk = chunk_;
    if (!chunk || chunk->used + bytes > chunk->size) {
      chunk = std::make_shared<Chunk>(round_up(std::max(bytes, kChunkBytes), kHugePage));
      if (bytes < kChunkBytes) chunk_ = chunk;
    }
    char* data = chunk->data + chunk->used;
    chunk->used += bytes;
    return at::from_blob(data, {count}, [chunk](void*) {}, options);
  }

  std::mutex mutex_;
  std::shared_ptr<Chunk> chunk_;  // the one that small weights share
};

}  // namespace cpu_backend

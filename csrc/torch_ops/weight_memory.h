// Memory for packed weights, in huge pages where the system has them.
//
// A weight is read front to back in every step.  With 4 KiB pages the prefetcher stops and the TLB
// is asked at every page; with 2 MiB pages hardly ever.  Weights of small models are smaller than
// one huge page, so they share chunks that are aligned to one.  Where one is of 512 MiB (Arm's
// kernels with pages of 64 KiB) chunks stay as small, and only weights of that size get one.
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
  static constexpr int64_t kChunkBytes = int64_t{32} << 20;

  struct Chunk {
    char* data;
    int64_t size, used = 0;

    Chunk(int64_t bytes, int64_t alignment)
        : data(static_cast<char*>(std::aligned_alloc(alignment, bytes))), size(bytes) {
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
      const int64_t size = large_page_size(std::max(bytes, kChunkBytes), large_page_);
      chunk = std::make_shared<Chunk>(size, large_page_alignment(size, large_page_));
      if (bytes < kChunkBytes) chunk_ = chunk;
    }
    char* data = chunk->data + chunk->used;
    chunk->used += bytes;
    return at::from_blob(data, {count}, [chunk](void*) {}, options);
  }

  const int64_t large_page_ = system::large_page_bytes();
  std::mutex mutex_;
  std::shared_ptr<Chunk> chunk_;  // the one that small weights share
};

}  // namespace cpu_backend

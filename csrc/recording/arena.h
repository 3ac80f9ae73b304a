// The memory of a recording: what the forward pass allocates while it is recorded, and again and
// again what its replays compute in.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/byte_ranges.h"

namespace cpu_backend {

// Best fit over blocks that tensors have given back; grows by chunks and never shrinks.  It lives
// as long as its recording or any tensor in it.
//
// Threads: allocate() and what tells of written bytes on the recording thread alone; blocks come
// back from any thread.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  struct Block {
    size_t bytes;
    int64_t number;  // blocks are counted as they are allocated
  };

  static std::shared_ptr<Arena> make() { return std::make_shared<Arena>(); }
  ~Arena();

  // While one is set, all of torch's CPU memory that this thread asks for comes from it.
  static void use_on_this_thread(Arena* arena);

  at::DataPtr allocate(size_t bytes);
  int64_t next_number() const { return next_number_; }

  bool owns(const void* data) const;
  static bool any_owns(const void* data);
  // The block in use that holds the byte, or nothing.
  std::optional<Block> block_of(const void* data) const;
  size_t blocks_in_use() const;

  // Bytes that the steps of a recording have written since they were allocated.
  ByteRanges written;

  // Signalling NaNs everywhere (torch.float32 and bfloat16; a NaN in float16 too).
  void fill_with_garbage();

 private:
  friend class ArenaAllocator;
  static void give_back(void* data);
  static Arena* owner_of(const void* data);

  std::pair<size_t, char*> new_chunk(size_t bytes);

  std::multimap<size_t, char*> free_;
  std::map<char*, Block> used_;
  std::vector<std::pair<char*, size_t>> chunks_;
  std::vector<at::DataPtr> memory_;
  std::shared_ptr<Arena> while_in_use_;
  int64_t next_number_ = 0;
};

}  // namespace cpu_backend

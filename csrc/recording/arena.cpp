#include "recording/arena.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>

#include "core/machine.h"
#include "core/slice.h"

namespace cpu_backend {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

// One lock and one table for all arenas: memory of a recording is rarely asked for and given back.
std::mutex& lock() {
  static std::mutex mutex;
  return mutex;
}

struct Chunk {
  size_t bytes;
  Arena* arena;
};

std::map<const char*, Chunk>& all_chunks() {
  static auto* const chunks = new std::map<const char*, Chunk>();
  return *chunks;
}

thread_local Arena* arena_of_this_thread = nullptr;

}  // namespace

// torch's CPU allocator, except on a thread that records.  torch also takes memory from it by
// raw_allocate, which wants the pointer to be all that there is to know of a block.
class ArenaAllocator : public at::Allocator {
 public:
  static ArenaAllocator& installed() {
    static ArenaAllocator* const allocator = [] {
      auto* made = new ArenaAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/100);
      return made;
    }();
    return *allocator;
  }

  at::DataPtr allocate(size_t bytes) override {
    return arena_of_this_thread ? arena_of_this_thread->allocate(bytes)
                                : previous_->allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
  at::Allocator& previous() const { return *previous_; }

 private:
  explicit ArenaAllocator(at::Allocator* previous) : previous_(previous) {}

  static void free_raw(void* data) {
    bool ours;
    {
      const std::lock_guard guard(lock());
      ours = Arena::owner_of(data) != nullptr;
    }
    if (ours) {
      Arena::give_back(data);
    } else {
      installed().previous_->raw_deleter()(data);
    }
  }

  at::Allocator* previous_;
};

void Arena::use_on_this_thread(Arena* arena) {
  ArenaAllocator::installed();
  arena_of_this_thread = arena;
}

Arena::~Arena() {
  const std::lock_guard guard(lock());
  for (const auto& [begin, bytes] : chunks_) all_chunks().erase(begin);
}

at::DataPtr Arena::allocate(size_t bytes) {
  const size_t size = round_up(static_cast<int64_t>(std::max<size_t>(bytes, 1)), kCacheLine);
  const std::lock_guard guard(lock());
  auto it = free_.lower_bound(size);
  if (it == free_.end()) it = free_.emplace(new_chunk(size));
  const size_t available = it->first;
  char* const data = it->second;
  free_.erase(it);
  if (available > size) free_.emplace(available - size, data + size);
  if (used_.empty()) while_in_use_ = shared_from_this();
  used_.emplace(data, Block{size, next_number_++});
  written.remove(byte_range(data, size));
  return {data, data, &give_back, at::Device(at::kCPU)};
}

void Arena::give_back(void* data) {
  std::shared_ptr<Arena> last;  // its end is not under the lock
  const std::lock_guard guard(lock());
  Arena* const arena = owner_of(data);
  const auto block = arena->used_.find(static_cast<char*>(data));
  arena->free_.emplace(block->second.bytes, block->first);
  arena->used_.erase(block);
  if (arena->used_.empty()) last = std::move(arena->while_in_use_);
}

Arena* Arena::owner_of(const void* data) {
  const auto* const address = static_cast<const char*>(data);
  auto chunk = all_chunks().upper_bound(address);
  if (chunk == all_chunks().begin()) return nullptr;
  --chunk;
  return address < chunk->first + chunk->second.bytes ? chunk->second.arena : nullptr;
}

bool Arena::owns(const void* data) const {
  const std::lock_guard guard(lock());
  return owner_of(data) == this;
}

bool Arena::any_owns(const void* data) {
  const std::lock_guard guard(lock());
  return owner_of(data) != nullptr;
}

std::optional<Arena::Block> Arena::block_of(const void* data) const {
  auto* const address = const_cast<char*>(static_cast<const char*>(data));
  const std::lock_guard guard(lock());
  auto block = used_.upper_bound(address);
  if (block == used_.begin()) return std::nullopt;
  --block;
  if (address >= block->first + block->second.bytes) return std::nullopt;
  return block->second;
}

size_t Arena::blocks_in_use() const {
  const std::lock_guard guard(lock());
  return used_.size();
}

void Arena::fill_with_garbage() {
  constexpr uint16_t kSignallingNan = 0x7fbf;
  const std::lock_guard guard(lock());
  for (const auto& [begin, bytes] : chunks_) {
    auto* const halves = reinterpret_cast<uint16_t*>(begin);
    std::fill(halves, halves + bytes / sizeof(uint16_t), kSignallingNan);
  }
}

std::pair<size_t, char*> Arena::new_chunk(size_t bytes) {
  const size_t size = std::max(bytes, kChunkBytes);
  memory_.push_back(ArenaAllocator::installed().previous().allocate(size));
  auto* const begin = static_cast<char*>(memory_.back().get());
  chunks_.emplace_back(begin, size);
  all_chunks().emplace(begin, Chunk{size, this});
  return {size, begin};
}

}  // namespace cpu_backend

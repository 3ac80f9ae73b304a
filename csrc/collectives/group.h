// The ranks of one machine that compute together, and the shared memory between them.
//
// Memory is one anonymous mapping.  What one rank shows to the others lies in its own slots, which
// it alone writes, so they are on its NUMA node; the others read them.
//
//   lanes     kSlots slots of kSlotBytes per rank and lane.  Lane l is where thread l of every rank
//             meets thread l of the others: no thread waits for another one of its own rank.
//   mailboxes kMailSlots slots of kMailSlotBytes per ordered pair of ranks, for messages.
//
// Pages cost nothing until they are touched, so the layout is generous.  All counters only grow.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/doorbell.h"
#include "collectives/rendezvous.h"
#include "core/machine.h"
#include "dispatch/kernel_table.h"

namespace cpu_backend::collectives {

constexpr int64_t kSlots = 4;
// Small enough that a chunk is read from a shared cache and not from memory.
constexpr int64_t kSlotBytes = 64 << 10;
constexpr int64_t kMailSlots = 64;
constexpr int64_t kMailSlotBytes = 256 << 10;

// How far one rank is in a lane: every number counts chunks.  Written by that rank alone.
struct alignas(kCacheLine) LaneState {
  std::atomic<uint64_t> shown;     // its inputs lie in its slots
  std::atomic<uint64_t> summed;    // its part of the sum lies in its slots
  std::atomic<uint64_t> finished;  // it looks at nobody's slots any more
  int64_t bytes[kSlots];           // length of the operation that the chunk belongs to
  Doorbell bell;
};

// One ordered pair of ranks; `sent` is the sender's, `taken` the receiver's.
struct Mailbox {
  alignas(kCacheLine) std::atomic<uint64_t> sent;
  Doorbell sender;
  alignas(kCacheLine) std::atomic<uint64_t> taken;
  Doorbell receiver;
};

struct Options {
  std::string name;  // the same on all ranks of the group, and of no other group on the machine
  int size;
  int rank;
  int lanes;  // threads that may take part; the same on all ranks
  const KernelTable* kernels;
};

class Group {
 public:
  // Listens for the other ranks.  Null with one sentence in `error`.
  static std::unique_ptr<Group> create(const Options& options, std::string* error);
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Meets the others and maps the memory.  Once, before anything else.
  bool join(std::string* error);

  bool joined() const { return memory_ != nullptr; }
  int size() const { return options_.size; }
  int rank() const { return options_.rank; }
  int lanes() const { return options_.lanes; }
  const KernelTable& kernels() const { return *options_.kernels; }

  LaneState& lane(int rank, int lane);
  char* slot(int rank, int lane, uint64_t chunk);
  Mailbox& mailbox(int from, int to);
  char* mail_slot(int from, int to, uint64_t chunk);

  // Chunks that this rank has started in a lane; the caller's thread owns the lane.
  uint64_t& next(int lane) { return next_[static_cast<size_t>(lane)].chunk; }

  // Waits on `bell` until ready(); false once the group has failed.  What a rank has shown before
  // it left still counts: it may leave as soon as the others need nothing more of it.
  template <class Ready>
  bool wait(Doorbell& bell, const Ready& ready) {
    if (abandoned_.load(std::memory_order_relaxed)) return false;
    if (ready()) return true;
    return !failed_.load(std::memory_order_relaxed) && bell.wait(ready, [this] { return alive(); });
  }

  // No rank can go on: all waits of all ranks end within kNap, now and later.
  void abandon();
  // Like abandon(), because ranks called with different lengths.
  void refuse_lengths();
  // Why waits end, as one sentence.
  std::string failure() const;

 private:
  // First in the mapping: the first cause of an end, as rank + 1, for all to tell the same story.
  struct Header {
    std::atomic<int32_t> gone;
    std::atomic<int32_t> abandoned_by;
  };
  struct alignas(kCacheLine) Next {  // apart, as every thread writes its own
    uint64_t chunk = 0;
  };

  explicit Group(const Options& options);
  bool alive();
  Header& header() const { return *reinterpret_cast<Header*>(memory_); }

  Options options_;
  Rendezvous rendezvous_;
  std::vector<Next> next_;
  int64_t mailboxes_at_, slots_at_, mail_slots_at_, bytes_;  // offsets in the mapping
  char* memory_ = nullptr;
  std::atomic<bool> failed_{false};     // some rank is gone or has given up
  std::atomic<bool> abandoned_{false};  // this one has
  std::atomic<bool> lengths_differ_{false};
};

}  // namespace cpu_backend::collectives

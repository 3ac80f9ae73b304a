#include "collectives/group.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/slice.h"

namespace cpu_backend::collectives {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "counters are shared by processes");

namespace {
constexpr int64_t kHeaderBytes = 64;
constexpr uint64_t kLayout = 1;  // changes with the layout, so that versions never mix
}  // namespace

Group::Group(const Options& options)
    : options_(options),
      rendezvous_(options.name, options.size, options.rank),
      next_(static_cast<size_t>(options.lanes)) {
  const int64_t ranks = options.size;
  const int64_t lanes = options.lanes;
  const int64_t lane_states = ranks * lanes * static_cast<int64_t>(sizeof(LaneState));
  const int64_t mailboxes = ranks * ranks * static_cast<int64_t>(sizeof(Mailbox));
  mailboxes_at_ = round_up(kHeaderBytes + lane_states, alignof(Mailbox));
  slots_at_ = round_up(mailboxes_at_ + mailboxes, kLargestPage);
  mail_slots_at_ = slots_at_ + ranks * lanes * kSlots * kSlotBytes;
  bytes_ = mail_slots_at_ + ranks * ranks * kMailSlots * kMailSlotBytes;
}

Group::~Group() {
  if (memory_) munmap(memory_, static_cast<size_t>(bytes_));
}

std::unique_ptr<Group> Group::create(const Options& options, std::string* error) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size || options.lanes < 1) {
    *error = "group " + options.name + ": rank " + std::to_string(options.rank) + " of " +
             std::to_string(options.size) + " with " + std::to_string(options.lanes) +
             " threads is not possible.";
    return nullptr;
  }
  std::unique_ptr<Group> group(new Group(options));
  return group->rendezvous_.listen(error) ? std::move(group) : nullptr;
}

bool Group::join(std::string* error) {
  const uint64_t agreement = (kLayout << 48) | (static_cast<uint64_t>(options_.size) << 24) |
                             static_cast<uint64_t>(options_.lanes);
  Descriptor memory;
  if (!rendezvous_.meet(agreement, bytes_, &memory, error)) return false;
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_SHARED,
                      memory.get(), 0);
  if (mapped == MAP_FAILED) {
    *error = "the shared memory of group " + options_.name +
             " cannot be mapped: " + std::strerror(errno) + ".";
    return false;
  }
  memory_ = static_cast<char*>(mapped);  // zeroed, which is where all counters start
  return true;
}

LaneState& Group::lane(int rank, int lane) {
  auto* states = reinterpret_cast<LaneState*>(memory_ + kHeaderBytes);
  return states[rank * options_.lanes + lane];
}

char* Group::slot(int rank, int lane, uint64_t chunk) {
  const int64_t index = static_cast<int64_t>(chunk % kSlots);
  const int64_t owner = static_cast<int64_t>(rank) * options_.lanes + lane;
  return memory_ + slots_at_ + (owner * kSlots + index) * kSlotBytes;
}

Mailbox& Group::mailbox(int from, int to) {
  return reinterpret_cast<Mailbox*>(memory_ + mailboxes_at_)[from * options_.size + to];
}

char* Group::mail_slot(int from, int to, uint64_t chunk) {
  const int64_t index = static_cast<int64_t>(chunk % kMailSlots);
  const int64_t pair = static_cast<int64_t>(from) * options_.size + to;
  return memory_ + mail_slots_at_ + (pair * kMailSlots + index) * kMailSlotBytes;
}

bool Group::alive() {
  if (failed_) return false;
  if (header().gone == 0 && header().abandoned_by == 0) {
    const int gone = rendezvous_.find_gone();
    if (gone < 0) return true;
    int32_t nobody = 0;
    header().gone.compare_exchange_strong(nobody, gone + 1);
  }
  failed_ = true;
  return false;
}

void Group::abandon() {
  abandoned_ = failed_ = true;
  int32_t nobody = 0;
  if (memory_) header().abandoned_by.compare_exchange_strong(nobody, options_.rank + 1);
}

void Group::refuse_lengths() {
  lengths_differ_ = true;
  abandon();
}

std::string Group::failure() const {
  const int gone = header().gone - 1;
  const int quitter = header().abandoned_by - 1;
  std::string what = "has failed";
  if (lengths_differ_) {
    what = "was called with different lengths by its ranks";
  } else if (gone >= 0) {
    what = "has lost rank " + std::to_string(gone) +
           ": its process has ended; look above for its last words, or in the kernel's log for a "
           "process killed for its memory";
  } else if (quitter >= 0) {
    what = "stops because rank " + std::to_string(quitter) + " met an error; look for it above";
  }
  return "Group " + options_.name + " " + what + ".";
}

}  // namespace cpu_backend::collectives

#include "collectives/collectives.h"

#include <algorithm>

#include "core/slice.h"

namespace cpu_backend::collectives {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

// One operation of one rank in one lane, cut into chunks that pass through its slots.
class Passage {
 public:
  Passage(Group& group, int lane, int64_t bytes)
      : group_(group),
        lane_(lane),
        first_(group.next(lane)),
        bytes_(bytes),
        chunks_(ceil_div(bytes, kSlotBytes)),
        mine_(group.lane(group.rank(), lane)) {
    group.next(lane) += static_cast<uint64_t>(chunks_);
  }

  int64_t chunks() const { return chunks_; }
  int64_t offset(int64_t chunk) const { return chunk * kSlotBytes; }
  int64_t length(int64_t chunk) const { return std::min(kSlotBytes, bytes_ - offset(chunk)); }
  char* slot(int rank, int64_t chunk) const { return group_.slot(rank, lane_, number(chunk)); }

  // The slot is free when every rank has finished what was in it before.
  bool open(int64_t chunk) {
    if (number(chunk) < kSlots) return true;
    return each_peer(number(chunk) + 1 - kSlots, &LaneState::finished);
  }
  void show(int64_t chunk) {
    mine_.bytes[number(chunk) % kSlots] = bytes_;
    advance(mine_.shown, chunk);
  }
  bool all_shown(int64_t chunk) {
    return each_peer(number(chunk) + 1, &LaneState::shown) && same_lengths(chunk);
  }
  bool shown_by(int rank, int64_t chunk) {
    return peer(rank, number(chunk) + 1, &LaneState::shown) && same_length(rank, chunk);
  }
  void sum(int64_t chunk) { advance(mine_.summed, chunk); }
  bool summed_by(int rank, int64_t chunk) {
    return peer(rank, number(chunk) + 1, &LaneState::summed);
  }
  void finish(int64_t chunk) { advance(mine_.finished, chunk); }

 private:
  uint64_t number(int64_t chunk) const { return first_ + static_cast<uint64_t>(chunk); }

  void advance(std::atomic<uint64_t>& counter, int64_t chunk) {
    counter.store(number(chunk) + 1, kRelease);
    mine_.bell.ring();
  }

  bool peer(int rank, uint64_t count, std::atomic<uint64_t> LaneState::* counter) {
    LaneState& state = group_.lane(rank, lane_);
    return group_.wait(state.bell, [&] { return (state.*counter).load(kAcquire) >= count; });
  }
  bool each_peer(uint64_t count, std::atomic<uint64_t> LaneState::* counter) {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (rank != group_.rank() && !peer(rank, count, counter)) return false;
    return true;
  }

  bool same_length(int rank, int64_t chunk) {
    if (group_.lane(rank, lane_).bytes[number(chunk) % kSlots] == bytes_) return true;
    group_.refuse_lengths();
    return false;
  }
  bool same_lengths(int64_t chunk) {
    for (int rank = 0; rank < group_.size(); ++rank)
      if (!same_length(rank, chunk)) return false;
    return true;
  }

  Group& group_;
  int lane_;
  uint64_t first_;  // chunks that passed through this lane before
  int64_t bytes_, chunks_;
  LaneState& mine_;
};

// Chunks are shown this far ahead of the one that is read, so that ranks need not march in step.
constexpr int64_t kAhead = 1;

// Shows `data` to all ranks; use(chunk) runs for every chunk that this rank shows.
template <class Use>
bool show_and(Group& group, Passage& passage, const char* data, const Use& use) {
  int64_t shown = 0;
  for (int64_t chunk = 0; chunk < passage.chunks(); ++chunk) {
    for (; shown < std::min(passage.chunks(), chunk + 1 + kAhead); ++shown) {
      if (!passage.open(shown)) return false;
      group.kernels().copy_bytes(data + passage.offset(shown), passage.slot(group.rank(), shown),
                                 passage.length(shown));
      passage.show(shown);
    }
    if (!use(chunk)) return false;
    passage.finish(chunk);
  }
  return true;
}

// Every rank sums everything by itself: one meeting per chunk, but `size` times the reading.
bool reduce_everywhere(Group& group, int lane, DType type, char* data, int64_t bytes) {
  Passage passage(group, lane, bytes);
  std::vector<ConstData> sources(static_cast<size_t>(group.size()));
  return show_and(group, passage, data, [&](int64_t chunk) {
    if (!passage.all_shown(chunk)) return false;
    for (int rank = 0; rank < group.size(); ++rank)
      sources[static_cast<size_t>(rank)] = passage.slot(rank, chunk);
    char* out = data + passage.offset(chunk);
    sources[static_cast<size_t>(group.rank())] = out;
    group.kernels().sum_buffers(type, {sources.data(), group.size(), out},
                                {0, passage.length(chunk) / bytes_of(type)});
    return true;
  });
}

// Every rank sums its part of each chunk and takes the other parts from the others: two meetings,
// and each value is read twice however many ranks there are.  The three stages of a chunk run one
// step apart, so that no rank waits for what another has just begun.
class SharedReduce {
 public:
  SharedReduce(Group& group, int lane, DType type, char* data, int64_t bytes)
      : group_(group),
        type_(type),
        data_(data),
        passage_(group, lane, bytes),
        sources_(static_cast<size_t>(group.size())) {}

  bool run() {
    static_assert(kSlots >= 3, "three chunks are under way at a time");
    for (int64_t step = 0; step < passage_.chunks() + 2; ++step) {
      if (step < passage_.chunks() && !show(step)) return false;
      if (step >= 1 && step <= passage_.chunks() && !sum(step - 1)) return false;
      if (step >= 2 && !take(step - 2)) return false;
    }
    return true;
  }

 private:
  // In bytes from the beginning of the chunk.
  Slice part(int rank, int64_t chunk) const {
    const int64_t size = bytes_of(type_);
    const Slice elements = split(passage_.length(chunk) / size, group_.size(), rank);
    return {elements.begin * size, elements.end * size};
  }
  void copy(char* to, const char* from, Slice bytes) const {
    group_.kernels().copy_bytes(from + bytes.begin, to + bytes.begin, bytes.end - bytes.begin);
  }

  // A rank's own part of its slot is left free for the sum.
  bool show(int64_t chunk) {
    if (!passage_.open(chunk)) return false;
    const Slice mine = part(group_.rank(), chunk);
    char* slot = passage_.slot(group_.rank(), chunk);
    const char* from = data_ + passage_.offset(chunk);
    copy(slot, from, {0, mine.begin});
    copy(slot, from, {mine.end, passage_.length(chunk)});
    passage_.show(chunk);
    return true;
  }

  bool sum(int64_t chunk) {
    if (!passage_.all_shown(chunk)) return false;
    const Slice mine = part(group_.rank(), chunk);
    for (int rank = 0; rank < group_.size(); ++rank)
      sources_[static_cast<size_t>(rank)] = passage_.slot(rank, chunk);
    char* out = data_ + passage_.offset(chunk);
    sources_[static_cast<size_t>(group_.rank())] = out;
    const int64_t size = bytes_of(type_);
    group_.kernels().sum_buffers(type_, {sources_.data(), group_.size(), out},
                                 {mine.begin / size, mine.end / size});
    copy(passage_.slot(group_.rank(), chunk), out, mine);
    passage_.sum(chunk);
    return true;
  }

  bool take(int64_t chunk) {
    char* out = data_ + passage_.offset(chunk);
    for (int rank = 0; rank < group_.size(); ++rank) {
      if (rank == group_.rank()) continue;
      if (!passage_.summed_by(rank, chunk)) return false;
      copy(out, passage_.slot(rank, chunk), part(rank, chunk));
    }
    passage_.finish(chunk);
    return true;
  }

  Group& group_;
  DType type_;
  char* data_;
  Passage passage_;
  std::vector<ConstData> sources_;
};

// Below, one meeting costs more than the reading that the second one saves.
constexpr int64_t kSharedFromBytes = 64 << 10;

}  // namespace

bool all_reduce(Group& group, int lane, DType type, char* data, int64_t count) {
  const int64_t bytes = count * bytes_of(type);
  if (group.size() == 1) return true;
  if (bytes * (group.size() - 1) < kSharedFromBytes)
    return reduce_everywhere(group, lane, type, data, bytes);
  return SharedReduce(group, lane, type, data, bytes).run();
}

bool all_gather(Group& group, int lane, const char* input, int64_t bytes, char* output,
                int64_t stride) {
  Passage passage(group, lane, bytes);
  return show_and(group, passage, input, [&](int64_t chunk) {
    const int64_t offset = passage.offset(chunk);
    const int64_t length = passage.length(chunk);
    const KernelTable& kernels = group.kernels();
    // The own part first: the others show theirs meanwhile.
    kernels.copy_bytes(input + offset, output + group.rank() * stride + offset, length);
    for (int step = 1; step < group.size(); ++step) {
      const int rank = (group.rank() + step) % group.size();
      if (!passage.shown_by(rank, chunk)) return false;
      kernels.copy_bytes(passage.slot(rank, chunk), output + rank * stride + offset, length);
    }
    return true;
  });
}

bool gather(Group& group, int lane, const char* input, int64_t bytes, char* const* outputs,
            int to) {
  Passage passage(group, lane, bytes);
  return show_and(group, passage, input, [&](int64_t chunk) {
    if (group.rank() != to) return true;
    const int64_t offset = passage.offset(chunk);
    const int64_t length = passage.length(chunk);
    for (int rank = 0; rank < group.size(); ++rank) {
      const bool own = rank == to;
      if (!own && !passage.shown_by(rank, chunk)) return false;
      const char* from = own ? input + offset : passage.slot(rank, chunk);
      group.kernels().copy_bytes(from, outputs[rank] + offset, length);
    }
    return true;
  });
}

bool send(Group& group, int to, const char* data, int64_t bytes) {
  Mailbox& box = group.mailbox(group.rank(), to);
  for (int64_t offset = 0; offset < bytes; offset += kMailSlotBytes) {
    const uint64_t number = box.sent.load(std::memory_order_relaxed);
    const auto has_room = [&] { return number - box.taken.load(kAcquire) < kMailSlots; };
    if (!group.wait(box.receiver, has_room)) return false;
    group.kernels().copy_bytes(data + offset, group.mail_slot(group.rank(), to, number),
                               std::min(kMailSlotBytes, bytes - offset));
    box.sent.store(number + 1, kRelease);
    box.sender.ring();
  }
  return true;
}

bool receive(Group& group, int from, char* data, int64_t bytes) {
  Mailbox& box = group.mailbox(from, group.rank());
  for (int64_t offset = 0; offset < bytes; offset += kMailSlotBytes) {
    const uint64_t number = box.taken.load(std::memory_order_relaxed);
    const auto has_mail = [&] { return box.sent.load(kAcquire) > number; };
    if (!group.wait(box.sender, has_mail)) return false;
    group.kernels().copy_bytes(group.mail_slot(from, group.rank(), number), data + offset,
                               std::min(kMailSlotBytes, bytes - offset));
    box.taken.store(number + 1, kRelease);
    box.receiver.ring();
  }
  return true;
}

}  // namespace cpu_backend::collectives

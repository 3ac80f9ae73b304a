// Sets of bytes of memory: which of them somebody has written, which of them may be read.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace cpu_backend {

struct ByteRange {
  uintptr_t begin, end;  // half-open

  uintptr_t size() const { return end - begin; }
  bool contains(uintptr_t address) const { return begin <= address && address < end; }
};

inline ByteRange byte_range(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes};
}

// Ranges that neither overlap nor touch each other.
class ByteRanges {
 public:
  void add(ByteRange range) {
    if (range.begin >= range.end) return;
    auto next = ranges_.upper_bound(range.begin);
    if (next != ranges_.begin() && std::prev(next)->second >= range.begin) --next;
    while (next != ranges_.end() && next->first <= range.end) {
      range.begin = next->first < range.begin ? next->first : range.begin;
      range.end = next->second > range.end ? next->second : range.end;
      next = ranges_.erase(next);
    }
    ranges_.emplace(range.begin, range.end);
  }

  void remove(ByteRange range) {
    if (range.begin >= range.end) return;
    auto next = ranges_.upper_bound(range.begin);
    if (next != ranges_.begin() && std::prev(next)->second > range.begin) --next;
    while (next != ranges_.end() && next->first < range.end) {
      const ByteRange old{next->first, next->second};
      next = ranges_.erase(next);
      if (old.begin < range.begin) ranges_.emplace(old.begin, range.begin);
      if (old.end > range.end) ranges_.emplace(range.end, old.end);
    }
  }

  // The parts of `range` that are not in the set, in order.
  std::vector<ByteRange> missing(ByteRange range) const {
    std::vector<ByteRange> parts;
    auto next = ranges_.upper_bound(range.begin);
    if (next != ranges_.begin()) --next;
    for (; next != ranges_.end() && next->first < range.end; ++next) {
      if (next->second <= range.begin) continue;
      if (next->first > range.begin) parts.push_back({range.begin, next->first});
      range.begin = next->second;
      if (range.begin >= range.end) return parts;
    }
    if (range.begin < range.end) parts.push_back(range);
    return parts;
  }

  bool contains(ByteRange range) const { return missing(range).empty(); }
  bool empty() const { return ranges_.empty(); }

 private:
  std::map<uintptr_t, uintptr_t> ranges_;  // begin to end
};

}  // namespace cpu_backend

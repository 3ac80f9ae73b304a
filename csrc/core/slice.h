// Who does which part: pure arithmetic, so that tests can pretend any number of threads.
#pragma once

#include <cstdint>

namespace cpu_backend {

// Half-open range of rows, panels or items.
struct Slice {
  int64_t begin;
  int64_t end;
};

// Part `index` of `parts` of [0, total): sizes differ by at most one, the parts cover the range.
static inline Slice split(int64_t total, int64_t parts, int64_t index) {
  const int64_t base = total / parts;
  const int64_t extra = total % parts;
  const int64_t begin = index * base + (index < extra ? index : extra);
  return {begin, begin + base + (index < extra ? 1 : 0)};
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

}  // namespace cpu_backend

// Where a token of a step is.
#pragma once

#include "core/view.h"
#include "isa/target.h"

namespace CPU_BACKEND_NAMESPACE {

struct TokenPlace {
  int64_t request, position;  // of its sequence
  int64_t end;                // of its request's tokens in the step
  const int32_t* blocks;      // its pages
};

CPU_BACKEND_INLINE TokenPlace place_of(const StepPages& pages, int64_t token) {
  int64_t low = 0, high = pages.requests - 1;  // the last request that begins no later
  while (low < high) {
    const int64_t middle = (low + high + 1) / 2;
    if (pages.query_start[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t end = pages.query_start[low + 1];
  return {low, pages.seq_lens[low] - (end - token), end,
          pages.block_table + low * pages.block_table_stride};
}

}  // namespace CPU_BACKEND_NAMESPACE

// How one step's attention is cut into items, as plain data computed once per step.
//
// Torch-free and deterministic: tests drive it with any number of pretended threads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/slice.h"
#include "core/view.h"

namespace cpu_backend {

// Rows (tokens x heads of a group) of one item at most: two matrix tiles; more would push scores
// and outputs (rows x (block_size + 2 value_dim) floats) out of a 48 KiB L1.
constexpr int kAttendRows = 32;
// Tokens of one KV partition; the unit of splitting a long context over threads.  Fixed, so that
// the arithmetic never depends on the split.  512 x 64 bf16 keys and values are 128 KiB: an L2
// share, and some 10 microseconds of work against 1 for handing an item out.
constexpr int kPartitionTokens = 512;

struct AttentionPlan {
  std::vector<AttendItem> items;  // in the order they should start: largest first
  std::vector<MergeItem> merges;
  int32_t partials = 0;
};

struct AttentionShape {
  int num_heads, num_kv_heads;
  const int32_t* query_start;  // [requests + 1]
  const int32_t* seq_lens;     // [requests]
  int requests;
  bool causal;  // of every request, when `dynamic_causal` is null
  const uint8_t* dynamic_causal;
  int window;
  int item_rows;  // at most kAttendRows
};

AttentionPlan plan_attention(const AttentionShape& shape, int threads);

}  // namespace cpu_backend

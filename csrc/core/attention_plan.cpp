#include "core/attention_plan.h"

#include <algorithm>

namespace cpu_backend {
namespace {

struct Block {
  AttendItem item;
  int64_t tokens;  // KV tokens the block walks over: its cost per row
};

Block row_block(const AttentionShape& shape, int request, int64_t row, int64_t rows, int group) {
  const int64_t seq_len = shape.seq_lens[request];
  const int64_t query_len = shape.query_start[request + 1] - shape.query_start[request];
  const bool causal = shape.dynamic_causal ? shape.dynamic_causal[request] != 0 : shape.causal;
  int64_t begin = 0;
  int64_t end = seq_len;
  const int64_t first_position = seq_len - query_len + row / group;
  const int64_t last_position = seq_len - query_len + (row + rows - 1) / group;
  if (causal) end = last_position + 1;
  if (shape.window > 0) begin = std::max<int64_t>(0, first_position - shape.window + 1);
  AttendItem item{};
  item.request = request;
  item.row_begin = static_cast<int32_t>(row);
  item.row_count = static_cast<int32_t>(rows);
  item.part_begin = static_cast<int32_t>(begin / kPartitionTokens);
  item.part_end = static_cast<int32_t>(ceil_div(std::max<int64_t>(end, 1), kPartitionTokens));
  item.partial = -1;
  return {item, end - begin};
}

std::vector<Block> row_blocks(const AttentionShape& shape) {
  const int group = shape.num_heads / shape.num_kv_heads;
  std::vector<Block> blocks;
  for (int request = 0; request < shape.requests; ++request) {
    const int64_t rows =
        static_cast<int64_t>(shape.query_start[request + 1] - shape.query_start[request]) * group;
    for (int64_t row = 0; row < rows; row += shape.item_rows)
      blocks.push_back(
          row_block(shape, request, row, std::min<int64_t>(shape.item_rows, rows - row), group));
  }
  return blocks;
}

}  // namespace

AttentionPlan plan_attention(const AttentionShape& shape, int threads) {
  const std::vector<Block> blocks = row_blocks(shape);
  int64_t total = 0;
  for (const Block& block : blocks) total += block.item.row_count * block.tokens;
  total *= shape.num_kv_heads;
  // No item should be larger than a quarter of a thread's share, so that the last one to start
  // cannot keep the others waiting for long.
  const int64_t largest = threads > 1 ? std::max<int64_t>(total / (4 * threads), 1) : total;

  AttentionPlan plan;
  std::vector<int64_t> costs;
  for (const Block& block : blocks) {
    const int32_t parts = block.item.part_end - block.item.part_begin;
    const int64_t cost = block.item.row_count * block.tokens;
    const bool split = parts > 1 && cost > largest;
    const int64_t part_cost = static_cast<int64_t>(block.item.row_count) * kPartitionTokens;
    const int32_t parts_per_item =
        split ? static_cast<int32_t>(std::max<int64_t>(1, largest / part_cost)) : parts;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      AttendItem item = block.item;
      item.kv_head = head;
      if (split) {
        plan.merges.push_back(
            {item.request, head, item.row_begin, item.row_count, parts, plan.partials});
      }
      for (int32_t part = block.item.part_begin; part < block.item.part_end;
           part += parts_per_item) {
        item.part_begin = part;
        item.part_end = std::min(part + parts_per_item, block.item.part_end);
        item.partial = split ? plan.partials + part - block.item.part_begin : -1;
        plan.items.push_back(item);
        costs.push_back(split ? part_cost * (item.part_end - part) : cost);
      }
      if (split) plan.partials += parts;
    }
  }
  std::vector<int32_t> order(plan.items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return costs[a] > costs[b]; });
  std::vector<AttendItem> sorted;
  sorted.reserve(order.size());
  for (const int32_t i : order) sorted.push_back(plan.items[i]);
  plan.items = std::move(sorted);
  return plan;
}

}  // namespace cpu_backend

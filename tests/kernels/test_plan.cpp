// Who does which part: split() and plan_attention() with pretended threads.
#include <map>
#include <set>
#include <tuple>

#include "core/attention_plan.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

void test_split_covers_the_range_once() {
  for (int64_t parts : {1, 2, 4, 7, 500}) {
    for (int64_t total : {0, 1, 3, 4, 5, 499, 500, 501, 12345}) {
      int64_t next = 0;
      int64_t smallest = total;
      int64_t largest = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Slice slice = split(total, parts, i);
        expect(slice.begin == next && slice.end >= slice.begin, "part %lld of %lld",
               static_cast<long long>(i), static_cast<long long>(parts));
        next = slice.end;
        smallest = std::min(smallest, slice.end - slice.begin);
        largest = std::max(largest, slice.end - slice.begin);
      }
      expect(next == total, "%lld parts cover %lld of %lld", static_cast<long long>(parts),
             static_cast<long long>(next), static_cast<long long>(total));
      expect(largest - smallest <= 1, "parts differ by %lld",
             static_cast<long long>(largest - smallest));
    }
  }
}
const Registration a("plan/test_split_covers_the_range_once", test_split_covers_the_range_once);

struct Step {
  int num_heads, num_kv_heads;
  std::vector<int32_t> query_lens, seq_lens;
  int window;
  int causal;  // 0, 1, or 2: alternating per request
};

// [begin, end) of what token `token` of a request sees, from the definition.
Slice visible(const Step& step, size_t request, int64_t token) {
  const int64_t seq_len = step.seq_lens[request];
  const int64_t position = seq_len - step.query_lens[request] + token;
  const bool causal = step.causal == 2 ? request % 2 == 0 : step.causal == 1;
  Slice range{0, causal ? position + 1 : seq_len};
  if (step.window > 0) {
    range.begin = std::max<int64_t>(0, position - step.window + 1);
    range.end = std::min<int64_t>(range.end, position + step.window);
  }
  return range;
}

AttentionPlan plan_of(const Step& step, int threads) {
  std::vector<int32_t> start = {0};
  std::vector<uint8_t> causal;
  for (size_t i = 0; i < step.query_lens.size(); ++i) {
    start.push_back(start.back() + step.query_lens[i]);
    causal.push_back(i % 2 == 0);
  }
  AttentionShape shape{step.num_heads,
                       step.num_kv_heads,
                       start.data(),
                       step.seq_lens.data(),
                       static_cast<int>(step.query_lens.size()),
                       step.causal == 1,
                       step.causal == 2 ? causal.data() : nullptr,
                       step.window,
                       kAttendRows};
  return plan_attention(shape, threads);
}

// Every item is within bounds, and every (request, head, row) finds each partition that it sees
// exactly once: in items that finish themselves, or in partials of exactly one merge.
void check_plan(const Step& step, int threads) {
  const AttentionPlan plan = plan_of(step, threads);
  const int group = step.num_heads / step.num_kv_heads;
  std::map<std::tuple<int, int, int, int>, int> covered;            // request, head, row, partition
  std::map<std::tuple<int, int, int>, int> finished;                // request, head, row
  std::map<int, std::tuple<int, int, int, int, int>> partial_rows;  // and its partition
  for (const AttendItem& item : plan.items) {
    const int rows = step.query_lens[static_cast<size_t>(item.request)] * group;
    expect(item.row_begin >= 0 && item.row_count > 0 && item.row_count <= kAttendRows &&
               item.row_begin + item.row_count <= rows,
           "rows %d + %d of %d", item.row_begin, item.row_count, rows);
    expect(item.kv_head >= 0 && item.kv_head < step.num_kv_heads, "head %d", item.kv_head);
    expect(item.part_begin < item.part_end, "an item without partitions");
    for (int row = item.row_begin; row < item.row_begin + item.row_count; ++row) {
      for (int part = item.part_begin; part < item.part_end; ++part)
        ++covered[{item.request, item.kv_head, row, part}];
      if (item.partial < 0) ++finished[{item.request, item.kv_head, row}];
    }
    for (int part = item.part_begin; part < item.part_end && item.partial >= 0; ++part) {
      const int index = item.partial + part - item.part_begin;
      expect(index < plan.partials, "partial %d of %d", index, plan.partials);
      const bool fresh =
          partial_rows
              .insert({index, {item.request, item.kv_head, item.row_begin, item.row_count, part}})
              .second;
      expect(fresh, "partial %d is written twice", index);
    }
  }
  std::set<int> merged;
  for (const MergeItem& merge : plan.merges) {
    int last_part = -1;
    for (int index = merge.partial; index < merge.partial + merge.parts; ++index) {
      const auto found = partial_rows.find(index);
      if (!expect(found != partial_rows.end() && merged.insert(index).second,
                  "partial %d is missing or merged twice", index))
        return;
      const auto& [request, head, row_begin, row_count, part] = found->second;
      expect(request == merge.request && head == merge.kv_head && row_begin == merge.row_begin &&
                 row_count == merge.row_count,
             "partial %d belongs to other rows", index);
      expect(last_part < 0 || part == last_part + 1, "partitions are merged out of order");
      last_part = part;
    }
    for (int row = merge.row_begin; row < merge.row_begin + merge.row_count; ++row)
      ++finished[{merge.request, merge.kv_head, row}];
  }
  expect(static_cast<int>(merged.size()) == plan.partials, "%zu of %d partials are merged",
         merged.size(), plan.partials);
  for (const auto& [key, count] : covered)
    expect(count == 1, "a partition is done %d times", count);
  size_t rows_in_all = 0;
  for (size_t request = 0; request < step.query_lens.size(); ++request) {
    for (int head = 0; head < step.num_kv_heads; ++head) {
      for (int row = 0; row < step.query_lens[request] * group; ++row, ++rows_in_all) {
        const int number = static_cast<int>(request);
        const auto found = finished.find({number, head, row});
        expect(found != finished.end() && found->second == 1, "row %d of request %zu", row,
               request);
        const Slice range = visible(step, request, row / group);
        for (int64_t at = range.begin; at < range.end; ++at)
          if (!expect(covered.count({number, head, row, static_cast<int>(at / kPartitionTokens)}),
                      "request %zu row %d does not reach position %lld", request, row,
                      static_cast<long long>(at)))
            break;
      }
    }
  }
  expect(finished.size() == rows_in_all, "rows that nobody asked for");
  if (threads == 1) expect(plan.merges.empty(), "one thread has nothing to merge");
}

const Step kSteps[] = {
    {4, 4, {1}, {1}, 0, 1},
    {8, 2, {1, 1, 1}, {511, 512, 513}, 0, 1},
    {8, 1, {1}, {5000}, 0, 1},                           // one long decode: must be split
    {8, 2, {1, 100, 1, 7}, {3000, 100, 1, 1030}, 0, 1},  // decode with prefill
    {6, 2, {40, 1, 600}, {1600, 2048, 600}, 100, 1},     // sliding window
    {6, 2, {40, 1, 9}, {1600, 2048, 700}, 1, 1},
    {4, 2, {30, 600}, {30, 600}, 0, 0},  // encoder
    {4, 2, {30, 600}, {1130, 600}, 64, 0},
    {4, 2, {17, 17, 1}, {1500, 1500, 1500}, 0, 2},
    {4, 2, {0, 3, 0}, {0, 3, 0}, 0, 1},  // padded requests
};

void test_plan_covers_every_partition_once() {
  for (const Step& step : kSteps)
    for (int threads : {1, 4, 500}) check_plan(step, threads);
}
const Registration b("plan/test_plan_covers_every_partition_once",
                     test_plan_covers_every_partition_once);

// No item costs more than a quarter of a thread's share, unless it is a single partition.
void test_plan_splits_long_contexts() {
  for (const Step& step : kSteps) {
    for (int threads : {4, 500}) {
      const AttentionPlan plan = plan_of(step, threads);
      int64_t total = 0;
      for (const AttendItem& item : plan.items)
        total += static_cast<int64_t>(item.row_count) * kPartitionTokens *
                 (item.part_end - item.part_begin);
      for (const AttendItem& item : plan.items) {
        const int64_t parts = item.part_end - item.part_begin;
        const int64_t cost = item.row_count * parts * kPartitionTokens;
        expect(parts == 1 || cost <= total / (4 * threads) + item.row_count * kPartitionTokens,
               "an item of %lld partitions for %d threads", static_cast<long long>(parts), threads);
      }
    }
  }
  const AttentionPlan plan = plan_of(kSteps[2], 500);
  expect(plan.items.size() == 10 && plan.merges.size() == 1, "5000 tokens are 10 items, not %zu",
         plan.items.size());
}
const Registration c("plan/test_plan_splits_long_contexts", test_plan_splits_long_contexts);

void test_plan_starts_with_the_largest() {
  const Step step = {8, 2, {1, 1, 1}, {100, 5000, 700}, 0, 1};
  expect(plan_of(step, 1).items.front().request == 1, "the longest request does not start first");
}
const Registration d("plan/test_plan_starts_with_the_largest", test_plan_starts_with_the_largest);

}  // namespace
}  // namespace cpu_backend::test

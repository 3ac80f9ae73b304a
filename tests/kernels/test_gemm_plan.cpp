// How a product is cut: everything once, whatever the number of threads.
#include "core/gemm_plan.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

const int64_t kSizes[] = {1, 2, 7, 25, 97, 600, 2048, 16384};
const int64_t kThreads[] = {1, 2, 4, 7, 500};

template <class F>
void for_each_plan(F check) {
  for (int64_t m : kSizes)
    for (int64_t n : kSizes)
      for (int64_t k : kSizes)
        for (int together : {1, 2})
          for (int64_t threads : kThreads)
            for (int64_t weight_bytes : {2, 4}) {
              const GemmShape shape{m, n, k, round_up(ceil_div(n, 16), together), together};
              for (int64_t rows : {gemm_rows(m, k, weight_bytes, weight_bytes), tile_item_rows(m)})
                check(shape, plan_gemm(shape, rows, threads), threads);
            }
}

void test_items_cover_the_product_once() {
  for_each_plan([](const GemmShape& shape, const GemmPlan& plan, int64_t threads) {
    int64_t rows = 0;
    for (int64_t item = 0; item < plan.row_items; ++item) {
      expect(plan.rows(item).begin == rows, "rows overlap or leave a gap");
      rows = plan.rows(item).end;
    }
    int64_t panels = 0;
    for (int64_t item = 0; item < plan.items(); item += plan.row_items) {
      const Slice part = plan.panels(item);
      expect(part.begin == panels && part.end > part.begin && part.end % shape.together == 0,
             "panels overlap, leave a gap or are torn apart");
      panels = part.end;
    }
    expect(rows == shape.m && panels == shape.panels,
           "%lld x %lld x %lld on %lld threads: %lld rows, %lld panels",
           static_cast<long long>(shape.m), static_cast<long long>(shape.n),
           static_cast<long long>(shape.k), static_cast<long long>(threads),
           static_cast<long long>(rows), static_cast<long long>(panels));
  });
}
const Registration a("gemm_plan/test_items_cover_the_product_once",
                     test_items_cover_the_product_once);

void test_activations_of_an_item_fit() {
  for_each_plan([](const GemmShape& shape, const GemmPlan& plan, int64_t) {
    const int64_t rows = plan.rows(0).end - plan.rows(0).begin;
    for (int64_t bytes : {2, 4}) {
      const int64_t depth = gemm_depth(rows, shape.k, bytes);
      expect(depth > 0 && rows * padded_depth(depth) <= activation_elements(bytes),
             "%lld rows %lld deep", static_cast<long long>(rows), static_cast<long long>(depth));
      expect(depth == shape.k || depth % kChainLength == 0, "%lld cuts a chain",
             static_cast<long long>(depth));
    }
  });
}
const Registration b("gemm_plan/test_activations_of_an_item_fit", test_activations_of_an_item_fit);

// Where there is work for all threads, the one with most has hardly more than its share.
void test_threads_get_equal_shares() {
  for (int64_t m : {1, 8, 128, 1024})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{960, 576},
                               {3072, 576},
                               {576, 1536},
                               {49152, 576},
                               {4096, 14336}})
      for (const auto& [threads, width] :
           {std::pair<int64_t, int64_t>{1, 16}, {2, 16}, {4, 16}, {1, 32}, {2, 32}}) {
        const GemmShape shape{m, n, k, ceil_div(n, width), 1};
        const GemmPlan plan = plan_gemm(shape, gemm_rows(shape.m, shape.k, 4, 2), threads);
        std::vector<int64_t> load(static_cast<size_t>(threads), 0);
        for (int64_t item = 0; item < plan.items(); ++item) {  // to the one that is free first
          const Slice rows = plan.rows(item), panels = plan.panels(item);
          *std::min_element(load.begin(), load.end()) +=
              (rows.end - rows.begin) * (panels.end - panels.begin);
        }
        const double share = static_cast<double>(m * shape.panels) / static_cast<double>(threads);
        const double most =
            static_cast<double>(*std::max_element(load.begin(), load.end())) / share;
        expect(most < (threads <= 2 ? 1.03 : 1.1),
               "%lld x %lld x %lld on %lld threads: one has %.2f shares", static_cast<long long>(m),
               static_cast<long long>(n), static_cast<long long>(k),
               static_cast<long long>(threads), most);
      }
}
const Registration c("gemm_plan/test_threads_get_equal_shares", test_threads_get_equal_shares);

// 18 panels for two threads: about eight items, but all of the same size.
void test_parts_are_equal_where_they_can_be() {
  const GemmPlan plan = plan_gemm({1, 576, 576, 18, 1}, 4, 2);
  for (int64_t item = 0; item < plan.items(); ++item) {
    const Slice panels = plan.panels(item);
    expect(panels.end - panels.begin == 3, "item %lld has %lld panels",
           static_cast<long long>(item), static_cast<long long>(panels.end - panels.begin));
  }
}
const Registration d("gemm_plan/test_parts_are_equal_where_they_can_be",
                     test_parts_are_equal_where_they_can_be);

}  // namespace
}  // namespace cpu_backend::test

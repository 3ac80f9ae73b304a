// Mixtures of experts: which rows belong to whom, and their weighted sums.
#include "core/expert_plan.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

void test_every_pair_has_its_row() {
  Random random(7);
  for (int64_t experts : {1, 2, 7, 128})
    for (int64_t count : {0, 1, 5, 64, 1000}) {
      std::vector<int32_t> ids;
      for (int64_t p = 0; p < count; ++p)  // some of no expert
        ids.push_back(static_cast<int32_t>(random.bits() % (experts + 1)) - 1);
      ExpertPlan plan;
      const int32_t earlier[] = {0, 0, -1};  // of a step to be forgotten
      plan.route(earlier, 3, experts);
      expect(plan.route(ids.data(), count, experts), "refused");
      int64_t row = 0;
      int64_t last_expert = -1;
      for (const ExpertRows& used : plan.used) {
        expect(used.expert > last_expert && used.rows.begin == row && used.rows.end > row,
               "experts out of order, or rows with a gap");
        int32_t last_pair = -1;
        for (; row < used.rows.end; ++row) {
          const int32_t pair = plan.pairs[static_cast<size_t>(row)];
          expect(pair > last_pair && ids[static_cast<size_t>(pair)] == used.expert &&
                     plan.places[static_cast<size_t>(pair)] == row,
                 "row %lld is not that of its pair", static_cast<long long>(row));
          last_pair = pair;
        }
        last_expert = used.expert;
      }
      expect(row == static_cast<int64_t>(plan.pairs.size()), "rows of no expert");
      for (int64_t p = 0; p < count; ++p)
        expect((plan.places[static_cast<size_t>(p)] < 0) == (ids[static_cast<size_t>(p)] < 0),
               "pair %lld has a row, or none, against its choice", static_cast<long long>(p));
    }
}

void test_an_expert_too_many_is_refused() {
  const int32_t ids[] = {0, 3, 1};
  ExpertPlan plan;
  expect(!plan.route(ids, 3, 3), "expert 3 of 3 was taken");
  expect(plan.route(ids, 3, 4), "expert 3 of 4 was refused");
}

void test_items_are_those_of_each_expert_in_turn() {
  ExpertItems items;
  expect(items.count() == 0, "items before any product");
  for (int64_t used : {5, 1, 0, 3}) {
    items.cut(used,
              [](int64_t u) { return plan_gemm({16 * (u + 1), 512, 512, 32, 1}, 16, 1 + u); });
    int64_t item = 0;
    for (int64_t u = 0; u < used; ++u)
      for (int64_t own = 0; own < items.plans[static_cast<size_t>(u)].items(); ++own, ++item) {
        const auto found = items.find(item);
        expect(found.used == u && found.item == own, "item %lld is %lld of %lld",
               static_cast<long long>(item), static_cast<long long>(found.item),
               static_cast<long long>(found.used));
      }
    expect(item == items.count(), "%lld items of %lld", static_cast<long long>(item),
           static_cast<long long>(items.count()));
  }
}

void check_combine(const KernelTable& table, DType type, int64_t size, int64_t count,
                   Random& random) {
  constexpr int64_t kTokens = 5, kRows = 7;
  const std::string label = format("%s size %lld of %lld rows", name_of(type),
                                   static_cast<long long>(size), static_cast<long long>(count));
  Buffer x(type, kRows, size, size + 3);
  x.fill(random, -2.0, 2.0);
  Buffer y(type, kTokens, size, size + 5);
  std::vector<int32_t> places;
  std::vector<float> weights;
  for (int64_t i = 0; i < kTokens * count; ++i) {
    places.push_back(static_cast<int32_t>(random.bits() % (kRows + 1)) - 1);
    weights.push_back(static_cast<float>(random.bits() % 1000) / 1000.0f);
  }
  const Slice tokens{1, 4};  // the others belong to other threads
  table.combine(
      type,
      {x.data(), x.stride(), places.data(), weights.data(), count, y.data(), y.stride(), size},
      tokens);
  Compare compare(type, label);
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < size; ++i) {
      double exact = 0.0;
      float plain = 0.0f;
      for (int64_t c = 0; c < count; ++c) {
        const int32_t place = places[static_cast<size_t>(t * count + c)];
        const float weight = weights[static_cast<size_t>(t * count + c)];
        if (place < 0) continue;
        exact += static_cast<double>(x.get(place, i)) * weight;
        plain += x.get(place, i) * weight;
      }
      if (t >= tokens.begin && t < tokens.end) {
        compare.add(y.get(t, i), exact, plain);
      } else {
        expect(std::isnan(y.get(t, i)), "%s: wrote outside its slice", label.c_str());
      }
    }
  compare.check();
  y.check_guards(label);
}

void test_weighted_sums() {
  Random random(9);
  for_each_target([&](const KernelTable& table) {
    for (DType type : kTypes)
      for (int64_t size : odd_sizes())
        for (int64_t count : {1, 2, 8}) check_combine(table, type, size, count, random);
  });
}

const Registration kTests[] = {
    {"experts/test_every_pair_has_its_row", test_every_pair_has_its_row},
    {"experts/test_an_expert_too_many_is_refused", test_an_expert_too_many_is_refused},
    {"experts/test_items_are_those_of_each_expert_in_turn",
     test_items_are_those_of_each_expert_in_turn},
    {"experts/test_weighted_sums", test_weighted_sums},
};

}  // namespace
}  // namespace cpu_backend::test

// Which rows meet which expert of a mixture in one step, and how the experts' products are cut into
// items, as plain data computed from the router's choice.
//
// Torch-free and deterministic: tests drive it with any number of pretended threads.
#pragma once

#include <algorithm>
#include <vector>

#include "core/gemm_plan.h"

namespace cpu_backend {

// The rows of one expert among those of all.
struct ExpertRows {
  int64_t expert;
  Slice rows;
};

// A pair is a token and one of the experts that the router chose for it: token * top_k + choice.
// Each becomes a row; rows of an expert are neighbours, in the order of their tokens, so that a
// row's result does not depend on what else is in the step.
struct ExpertPlan {
  std::vector<ExpertRows> used;  // experts that have rows, by their numbers
  std::vector<int32_t> pairs;    // of each row
  std::vector<int32_t> places;   // of each pair its row, or -1: not an expert of this rank

  // ids [pairs]: an expert of `experts`, or negative for none.  False where one is too large.
  bool route(const int32_t* ids, int64_t pair_count, int64_t experts) {
    std::vector<int64_t> ends(experts, 0);
    for (int64_t p = 0; p < pair_count; ++p) {
      if (ids[p] >= experts) return false;
      if (ids[p] >= 0) ++ends[ids[p]];
    }
    used.clear();
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t count = ends[e];
      if (count > 0) used.push_back({e, {rows, rows + count}});
      ends[e] = rows;
      rows += count;
    }
    pairs.resize(rows);
    places.resize(pair_count);
    for (int64_t p = 0; p < pair_count; ++p) {
      places[p] = ids[p] >= 0 ? static_cast<int32_t>(ends[ids[p]]++) : -1;
      if (places[p] >= 0) pairs[places[p]] = static_cast<int32_t>(p);
    }
    return true;
  }
};

// One product of each used expert, item after item.
struct ExpertItems {
  std::vector<GemmPlan> plans;  // of ExpertPlan::used
  std::vector<int64_t> ends;    // of each plan's items

  int64_t count() const { return ends.empty() ? 0 : ends.back(); }

  // plan_of(index in `used`)
  template <class F>
  void cut(int64_t used, const F& plan_of) {
    plans.clear();
    ends.clear();
    for (int64_t u = 0; u < used; ++u) {
      plans.push_back(plan_of(u));
      ends.push_back(count() + plans.back().items());
    }
  }

  // The plan that an item belongs to, and its number there.
  struct Item {
    int64_t used, item;
  };
  Item find(int64_t item) const {
    const int64_t u = std::upper_bound(ends.begin(), ends.end(), item) - ends.begin();
    return {u, u == 0 ? item : item - ends[u - 1]};
  }
};

}  // namespace cpu_backend

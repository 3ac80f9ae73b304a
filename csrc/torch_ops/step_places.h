// Where the tokens of a step are, as its tensors say.
#pragma once

#include <algorithm>

#include "core/view.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {

// query_start_loc [requests + 1], seq_lens [requests] and block_table [requests, width], int32;
// looked up each time a loop runs, so a recorded step follows them.
struct StepPlaces {
  StepTensor query_start, seq_lens, block_table;

  StepPlaces(const at::Tensor& query_start_loc, const at::Tensor& lens, const at::Tensor& blocks)
      : query_start(query_start_loc), seq_lens(lens), block_table(blocks) {
    const int64_t requests = query_start_loc.numel() - 1;
    typed_data<int32_t>(query_start_loc, "query_start_loc");
    typed_data<int32_t>(lens, "seq_lens");
    check_dense_last_dim(blocks, "block_table");
    TORCH_CHECK_TYPE(blocks.scalar_type() == at::kInt, "block_table must be int32.");
    TORCH_CHECK_VALUE(requests >= 0 && lens.numel() >= requests && blocks.dim() == 2 &&
                          blocks.size(0) >= requests,
                      "seq_lens ", lens.sizes(), " and block_table ", blocks.sizes(),
                      " are too short for the ", requests, " requests of query_start_loc.");
  }
  StepPages get() const {
    return {query_start.size(0) - 1, query_start.data<int32_t>(), seq_lens.data<int32_t>(),
            block_table.data<int32_t>(), block_table.stride(0)};
  }
  int64_t tokens() const { return query_start.data<int32_t>()[query_start.size(0) - 1]; }
  int64_t longest() const {
    int32_t most = 0;
    for (int64_t r = 0; r < query_start.size(0) - 1; ++r)
      most = std::max(most, seq_lens.data<int32_t>()[r]);
    return most;
  }
};

}  // namespace cpu_backend

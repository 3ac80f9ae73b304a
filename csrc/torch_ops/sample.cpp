// Token choice and logit penalties.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

template <class F>
at::Tensor choose(const at::Tensor& logits, int64_t cost, const F& f) {
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) > 0,
                    "logits must be [requests, vocabulary], they are ", logits.sizes(), ".");
  const Rows rows = rows_of(logits, "logits");
  at::Tensor tokens = at::empty({rows.count}, at::kLong);
  auto* out = tokens.data_ptr<int64_t>();
  const int64_t row_bytes = rows.stride * logits.itemsize();
  parallel_slices(rows.count, row_grain(cost * rows.size), [=](Slice slice) {
    for (int64_t r = slice.begin; r < slice.end; ++r)
      out[r] = f(r, static_cast<const char*>(rows.data) + r * row_bytes, rows.size);
  });
  return tokens;
}

}  // namespace

at::Tensor greedy_argmax(const at::Tensor& logits) {
  const DType dtype = dtype_of(logits, "logits");
  return choose(logits, 1, [=](int64_t, const void* row, int64_t size) {
    return kernels().argmax_row(dtype, row, size);
  });
}

at::Tensor fused_gumbel_argmax(const at::Tensor& logits, const at::Tensor& seeds) {
  const DType dtype = dtype_of(logits, "logits");
  const int64_t* seed = typed_data<int64_t>(seeds, "seeds");
  TORCH_CHECK_VALUE(seeds.numel() == logits.size(0), "seeds has ", seeds.numel(), " entries for ",
                    logits.size(0), " rows of logits.");
  return choose(logits, 16, [=](int64_t r, const void* row, int64_t size) {
    return kernels().gumbel_argmax_row(dtype, row, size, static_cast<uint64_t>(seed[r]));
  });
}

void keep_top(at::Tensor& logits, const OptionalTensor& k, const OptionalTensor& p) {
  TORCH_CHECK_TYPE(logits.scalar_type() == at::kFloat, "logits must be float32.");
  TORCH_CHECK_VALUE(logits.dim() == 2, "logits must be [requests, vocabulary], they are ",
                    logits.sizes(), ".");
  const Rows rows = rows_of(logits, "logits");
  if (k) check_shape(*k, {rows.count}, "k");
  if (p) check_shape(*p, {rows.count}, "p");
  const int32_t* ks = k ? typed_data<int32_t>(*k, "k") : nullptr;
  const float* ps = p ? typed_data<float>(*p, "p") : nullptr;
  parallel_slices(rows.count, row_grain(8 * rows.size), [=](Slice slice) {
    float* scratch = thread_scratch(2 * rows.size);
    for (int64_t r = slice.begin; r < slice.end; ++r)
      kernels().keep_top(static_cast<float*>(rows.data) + r * rows.stride, rows.size,
                         ks ? ks[r] : 0, ps ? ps[r] : 1.0f, scratch);
  });
}

void apply_repetition_penalties(at::Tensor& logits, const at::Tensor& prompt_mask,
                                const at::Tensor& output_mask, const at::Tensor& penalties) {
  TORCH_CHECK_TYPE(logits.scalar_type() == at::kFloat && penalties.scalar_type() == at::kFloat,
                   "logits and repetition_penalties must be float32.");
  check_shape(prompt_mask, logits.sizes(), "prompt_mask");
  check_shape(output_mask, logits.sizes(), "output_mask");
  const Rows rows = rows_of(logits, "logits");
  const bool* in_prompt = typed_data<bool>(prompt_mask, "prompt_mask");
  const bool* in_output = typed_data<bool>(output_mask, "output_mask");
  check_shape(penalties, {rows.count}, "repetition_penalties");
  const float* penalty = typed_data<float>(penalties, "repetition_penalties");
  parallel_slices(rows.count, row_grain(rows.size), [=](Slice slice) {
    for (int64_t r = slice.begin; r < slice.end; ++r) {
      float* x = static_cast<float*>(rows.data) + r * rows.stride;
      for (int64_t i = 0; i < rows.size; ++i) {
        if (in_prompt[r * rows.size + i] || in_output[r * rows.size + i])
          x[i] = x[i] > 0.0f ? x[i] / penalty[r] : x[i] * penalty[r];
      }
    }
  });
}

}  // namespace cpu_backend

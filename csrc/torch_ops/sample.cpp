// Token choice and logit penalties.
#include <algorithm>

#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

template <class F>
at::Tensor choose(const at::Tensor& logits, int64_t cost, const F& f) {
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) > 0,
                    "logits must be [requests, vocabulary], they are ", logits.sizes(), ".");
  const at::Tensor dense = with_rows(logits);
  const Rows rows = rows_of(dense, "logits");
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
  const at::Tensor dense = seeds.contiguous();
  const int64_t* seed = typed_data<int64_t>(dense, "seeds");
  TORCH_CHECK_VALUE(seeds.numel() == logits.size(0), "seeds has ", seeds.numel(), " entries for ",
                    logits.size(0), " rows of logits.");
  return choose(logits, 16, [=](int64_t r, const void* row, int64_t size) {
    return kernels().gumbel_argmax_row(dtype, row, size, static_cast<uint64_t>(seed[r]));
  });
}

namespace {

// The logits that the ops below change, and one optional setting per row of them.
Rows float_rows(const at::Tensor& logits) {
  TORCH_CHECK_TYPE(logits.scalar_type() == at::kFloat, "logits must be float32.");
  TORCH_CHECK_VALUE(logits.dim() == 2 && logits.size(1) > 0,
                    "logits must be [requests, vocabulary], they are ", logits.sizes(), ".");
  return rows_of(logits, "logits");
}

template <class T>
const T* per_row(const OptionalTensor& setting, const Rows& rows, const char* name) {
  if (!setting) return nullptr;
  check_shape(*setting, {rows.count}, name);
  return typed_data<T>(*setting, name);
}

}  // namespace

void keep_top(at::Tensor& logits, const OptionalTensor& k, const OptionalTensor& p) {
  const Rows rows = float_rows(logits);
  const auto* ks = per_row<int32_t>(k, rows, "k");
  const auto* ps = per_row<float>(p, rows, "p");
  const int64_t floats = kernels().top_tokens_scratch(rows.size);
  parallel_slices(rows.count, row_grain(4 * rows.size), [=](Slice slice) {
    float* scratch = thread_scratch(floats);
    for (int64_t r = slice.begin; r < slice.end; ++r)
      kernels().keep_top(static_cast<float*>(rows.data) + r * rows.stride, rows.size,
                         {ks ? ks[r] : 0, ps ? ps[r] : 1.0f, 0.0f}, scratch);
  });
}

at::Tensor sample(at::Tensor& logits, const at::Tensor& temperature, const OptionalTensor& k,
                  const OptionalTensor& p, const OptionalTensor& min_p, const at::Tensor& seeds) {
  const Rows rows = float_rows(logits);
  const auto* ts = per_row<float>(temperature, rows, "temperature");
  const auto* ks = per_row<int32_t>(k, rows, "k");
  const auto* ps = per_row<float>(p, rows, "p");
  const auto* min_ps = per_row<float>(min_p, rows, "min_p");
  const auto* seed = per_row<int64_t>(seeds, rows, "seeds");
  at::Tensor tokens = at::empty({rows.count}, at::kLong);
  auto* out = tokens.data_ptr<int64_t>();
  const int64_t floats = kernels().top_tokens_scratch(rows.size);
  parallel_slices(rows.count, row_grain(4 * rows.size), [=](Slice slice) {
    float* scratch = thread_scratch(floats);
    for (int64_t r = slice.begin; r < slice.end; ++r) {
      const TokenFilter filter{ks ? ks[r] : 0, ps ? ps[r] : 1.0f, min_ps ? min_ps[r] : 0.0f};
      out[r] = kernels().sample_row(static_cast<float*>(rows.data) + r * rows.stride, rows.size,
                                    {ts[r], filter, static_cast<uint64_t>(seed[r])}, scratch);
    }
  });
  return tokens;
}

void apply_penalties(at::Tensor& logits, const at::Tensor& prompt, const at::Tensor& output,
                     const at::Tensor& output_start, const at::Tensor& repetition,
                     const at::Tensor& frequency, const at::Tensor& presence) {
  const Rows rows = float_rows(logits);
  TORCH_CHECK_VALUE(prompt.dim() == 2 && prompt.size(0) == rows.count,
                    "prompt must be [requests, tokens], it is ", prompt.sizes(), ".");
  const Rows prompts = rows_of(prompt, "prompt");
  const auto* prompt_tokens = typed_data<int64_t>(prompt, "prompt");
  const auto* output_tokens = typed_data<int64_t>(output, "output");
  check_shape(output_start, {rows.count + 1}, "output_start");
  const auto* start = typed_data<int64_t>(output_start, "output_start");
  TORCH_CHECK_VALUE(start[0] >= 0 && std::is_sorted(start, start + rows.count + 1) &&
                        start[rows.count] <= output.numel(),
                    "output_start must rise from 0 to at most ", output.numel(), ".");
  const auto* repetitions = per_row<float>(repetition, rows, "repetition");
  const auto* frequencies = per_row<float>(frequency, rows, "frequency");
  const auto* presences = per_row<float>(presence, rows, "presence");

  parallel_slices(rows.count, 1, [=](Slice slice) {
    // Per token of the vocabulary; only entries of tokens that occur are ever written or read.
    auto* count = reinterpret_cast<int32_t*>(thread_scratch(rows.size));
    for (int64_t r = slice.begin; r < slice.end; ++r) {
      float* x = static_cast<float*>(rows.data) + r * rows.stride;
      const auto for_each = [&](const int64_t* tokens, int64_t size, const auto& f) {
        for (int64_t i = 0; i < size; ++i)
          if (tokens[i] >= 0 && tokens[i] < rows.size) f(tokens[i]);
      };
      const auto in_prompt = [&](const auto& f) {
        for_each(prompt_tokens + r * prompts.stride, prompts.size, f);
      };
      const auto in_output = [&](const auto& f) {
        for_each(output_tokens + start[r], start[r + 1] - start[r], f);
      };
      constexpr int32_t kDone = -1;
      const auto penalize = [&](int64_t token) {
        if (count[token] == kDone) return;
        float& logit = x[token];
        logit = logit > 0.0f ? logit / repetitions[r] : logit * repetitions[r];
        logit -= frequencies[r] * static_cast<float>(count[token]);
        if (count[token] > 0) logit -= presences[r];
        count[token] = kDone;
      };
      in_prompt([&](int64_t token) { count[token] = 0; });
      in_output([&](int64_t token) { count[token] = 0; });
      in_output([&](int64_t token) { ++count[token]; });
      in_prompt(penalize);
      in_output(penalize);
    }
  });
}

void apply_repetition_penalties(at::Tensor& logits, const at::Tensor& prompt_mask,
                                const at::Tensor& output_mask, const at::Tensor& penalties) {
  TORCH_CHECK_TYPE(logits.scalar_type() == at::kFloat && penalties.scalar_type() == at::kFloat,
                   "logits and repetition_penalties must be float32.");
  check_shape(prompt_mask, logits.sizes(), "prompt_mask");
  check_shape(output_mask, logits.sizes(), "output_mask");
  const Rows rows = rows_of(logits, "logits");
  const at::Tensor prompts = prompt_mask.contiguous(), outputs = output_mask.contiguous();
  const bool* in_prompt = typed_data<bool>(prompts, "prompt_mask");
  const bool* in_output = typed_data<bool>(outputs, "output_mask");
  check_shape(penalties, {rows.count}, "repetition_penalties");
  const at::Tensor factors = penalties.contiguous();
  const float* penalty = typed_data<float>(factors, "repetition_penalties");
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

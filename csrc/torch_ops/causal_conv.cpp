// Causal convolution under the host's names: of prompts, of single tokens, and of both.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/sequences.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

// [channels, taps]: as checkpoints have it, with or without a dimension of one between, or packed.
at::Tensor taps_of(const at::Tensor& weight, bool is_packed) {
  if (weight.dim() == 3) return weight.squeeze(1);
  TORCH_CHECK_VALUE(weight.dim() == 2, "weight must be [channels, taps], it is ", weight.sizes(),
                    ".");
  return is_packed ? weight.t() : weight;
}

// x [tokens, channels] to the same shape; `states` [slots, channels, >= taps - 1].
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                    const OptionalTensor& states, bool silu, const StepSequences& sequences) {
  const DType dtype = dtype_of(x, "x");
  const at::Tensor rows = with_rows(x);
  CausalConvArgs args{};
  const Rows from = rows_of(rows, "x");
  args.x = from.data;
  args.x_stride = from.stride;
  args.tokens = from.count;
  args.channels = weight.size(0);
  args.taps = static_cast<int>(weight.size(1));
  check_same_dtype(weight, "weight", x, "x");
  TORCH_CHECK_VALUE(x.size(1) == args.channels && args.taps >= 1, "x has ", x.size(1),
                    " channels, and weight has shape ", weight.sizes(), ".");
  args.weight = weight.data_ptr();
  args.weight_channel_stride = weight.stride(0);
  args.weight_tap_stride = weight.stride(1);
  if (bias) {
    check_same_dtype(*bias, "bias", x, "x");
    check_shape(*bias, {args.channels}, "bias");
    check_dense_last_dim(*bias, "bias");
    args.bias = bias->data_ptr();
  }
  if (states) {
    check_same_dtype(*states, "conv_states", x, "x");
    const int64_t places = args.taps - 1 + sequences.drafts();
    TORCH_CHECK_VALUE(
        states->dim() == 3 && states->size(1) == args.channels && states->size(2) >= places,
        "conv_states has shape ", states->sizes(), ", expected [slots, ", args.channels, ", ",
        places, "].");
    args.state = states->data_ptr();
    args.state_slot_stride = states->stride(0);
    args.state_channel_stride = states->stride(1);
    args.state_time_stride = states->stride(2);
  }
  args.silu = silu;
  const at::Tensor y = at::empty({args.tokens, args.channels}, x.options());
  args.y = y.data_ptr();
  args.y_stride = args.channels;
  const KernelTable& table = kernels();
  const int64_t block = table.conv_channels, blocks = ceil_div(args.channels, block);
  parallel_items([=] { return args.tokens > 0 ? blocks : 0; },
                 table.causal_conv_scratch_floats(args.taps),
                 [=](int64_t i, float* scratch) {
                   CausalConvArgs step = args;
                   step.sequences = sequences.get();
                   kernels().causal_conv(
                       dtype, step, {i * block, std::min((i + 1) * block, args.channels)}, scratch);
                 });
  return y;
}

// [batch, channels, length] as [batch * length, channels], and back.
at::Tensor as_tokens(const at::Tensor& x) { return x.transpose(1, 2).reshape({-1, x.size(1)}); }
at::Tensor as_batch(const at::Tensor& tokens, const at::Tensor& x) {
  return tokens.view({x.size(0), x.size(2), x.size(1)}).transpose(1, 2);
}

bool is_silu(const std::optional<c10::string_view>& activation) {
  TORCH_CHECK_VALUE(!activation || *activation == "silu" || *activation == "swish",
                    "a convolution is followed by silu or nothing, not by ", *activation, ".");
  return activation.has_value();
}

at::Tensor update(const at::Tensor& x, const at::Tensor& states, const at::Tensor& weight,
                  const OptionalTensor& bias, bool silu, const OptionalTensor& slots,
                  const OptionalTensor& starts, int64_t null_slot) {
  TORCH_CHECK_VALUE(x.dim() == 2 || (x.dim() == 3 && !starts), "x has shape ", x.sizes(),
                    ", expected [batch, channels], [batch, channels, length] or, with "
                    "query_start_loc, [tokens, channels].");
  const int64_t length = x.dim() == 3 ? x.size(2) : 1;
  const StepSequences sequences(starts, x.size(0), length, slots, null_slot, std::nullopt, true);
  if (x.dim() == 2) return convolve(x, weight, bias, states, silu, sequences);
  return as_batch(convolve(as_tokens(x), weight, bias, states, silu, sequences), x);
}

}  // namespace

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                       const at::Tensor& states, const at::Tensor& query_start_loc,
                       const at::Tensor& slots, const at::Tensor& resumes,
                       const OptionalTensor& accepted, bool silu) {
  TORCH_CHECK_VALUE(x.dim() == 2, "x has shape ", x.sizes(), ", expected [tokens, channels].");
  return convolve(x, taps_of(weight, false), bias, states, silu,
                  StepSequences(query_start_loc, 0, 0, slots, kNullSlot, resumes, false, accepted));
}

at::Tensor causal_conv1d_fwd(const at::Tensor& x, const at::Tensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& conv_states,
                             const OptionalTensor& query_start_loc,
                             const OptionalTensor& cache_indices,
                             const OptionalTensor& has_initial_state, bool silu_activation,
                             int64_t pad_slot_id, bool is_weight_packed) {
  TORCH_CHECK_VALUE(x.dim() == 2 || (x.dim() == 3 && !query_start_loc), "x has shape ", x.sizes(),
                    ", expected [channels, tokens] or, without query_start_loc, "
                    "[batch, channels, tokens].");
  const bool batched = x.dim() == 3;
  const StepSequences sequences(query_start_loc, batched ? x.size(0) : 1, x.size(batched ? 2 : 1),
                                cache_indices, pad_slot_id, has_initial_state, false);
  const at::Tensor taps = taps_of(weight, is_weight_packed);
  if (!batched) return convolve(x.t(), taps, bias, conv_states, silu_activation, sequences).t();
  return as_batch(convolve(as_tokens(x), taps, bias, conv_states, silu_activation, sequences), x);
}

at::Tensor causal_conv1d_update(const at::Tensor& x, const at::Tensor& conv_states,
                                const at::Tensor& weight, const OptionalTensor& bias,
                                bool silu_activation, const OptionalTensor& num_accepted_tokens,
                                const OptionalTensor& conv_state_indices, int64_t pad_slot_id,
                                bool is_weight_packed) {
  if (num_accepted_tokens) {
    TORCH_CHECK_VALUE(x.dim() == 3 && conv_state_indices && conv_state_indices->dim() == 1 &&
                          conv_states.dim() == 3 && x.size(1) >= 1,
                      "beside num_accepted_tokens x is [batch, length, channels], it is ",
                      x.sizes(), ", and every sequence has one of conv_state_indices.");
    const at::Tensor taps = taps_of(weight, is_weight_packed);
    TORCH_CHECK_VALUE(conv_states.size(2) >= taps.size(1) + x.size(1) - 2, "conv_states has shape ",
                      conv_states.sizes(), ", which holds no inputs of ", x.size(1), " drafts.");
    const at::Tensor slots = conv_state_indices->unsqueeze(1);
    return convolve(x.flatten(0, 1), taps, bias, conv_states, silu_activation,
                    {std::nullopt, x.size(0), x.size(1), slots, pad_slot_id, std::nullopt, true,
                     num_accepted_tokens})
        .view(x.sizes());
  }
  return update(x, conv_states, taps_of(weight, is_weight_packed), bias, silu_activation,
                conv_state_indices, std::nullopt, pad_slot_id);
}

at::Tensor causal_conv1d_update_vec(const at::Tensor& x, const at::Tensor& conv_state,
                                    const at::Tensor& weight, const OptionalTensor& bias,
                                    std::optional<c10::string_view> activation,
                                    const OptionalTensor& conv_state_indices,
                                    const OptionalTensor& query_start_loc, int64_t pad_slot_id) {
  return update(x, conv_state, taps_of(weight, false), bias, is_silu(activation),
                conv_state_indices, query_start_loc, pad_slot_id);
}

at::Tensor causal_conv1d_weight_pack(const at::Tensor& weight) {
  return taps_of(weight, false).t().contiguous();
}

}  // namespace cpu_backend

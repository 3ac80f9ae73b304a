// RMS norms, alone, after an addition and with a gate, and layer norms: check, view, hand rows to
// the kernel.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

void run(DType dtype, const NormArgs& args, int64_t rows) {
  parallel_slices(rows, row_grain(args.hidden),
                  [=](Slice slice) { kernels().rms_norm(dtype, args, slice); });
}

const void* weight_data(const OptionalTensor& weight, const at::Tensor& input, int64_t hidden,
                        const char* name = "weight") {
  if (!weight) return nullptr;
  check_same_dtype(*weight, name, input, "input");
  check_shape(*weight, {hidden}, name);
  check_dense_last_dim(*weight, name);
  return weight->data_ptr();
}

void norm(at::Tensor& out, const at::Tensor& input, const OptionalTensor& weight, double epsilon,
          float weight_offset) {
  check_same_dtype(out, "out", input, "input");
  check_shape(out, input.sizes(), "out");
  const DType dtype = dtype_of(input, "input");
  const Rows y = rows_of(out, "out");
  const void* w = weight_data(weight, input, y.size);
  NormArgs args{};
  args.weight = w;
  args.weight_offset = weight_offset;
  args.y = y.data;
  args.y_stride = y.stride;
  args.hidden = y.size;
  args.epsilon = static_cast<float>(epsilon);
  if (input.dim() == 3 && !input.is_contiguous() && is_dense_in_last_dim(input)) {
    // Heads cut out of a merged projection are strided twice: one token's heads at a time.
    const Heads x = heads_of(input, y.size, "input");
    const int64_t x_step = x.token_stride * input.itemsize();
    const int64_t y_step = x.heads * y.stride * out.itemsize();
    args.x_stride = x.head_stride;
    parallel_slices(x.tokens, row_grain(x.heads * y.size), [=](Slice tokens) {
      for (int64_t t = tokens.begin; t < tokens.end; ++t) {
        NormArgs token = args;
        token.x = static_cast<const char*>(x.data) + t * x_step;
        token.y = static_cast<char*>(y.data) + t * y_step;
        kernels().rms_norm(dtype, token, {0, x.heads});
      }
    });
    return;
  }
  const at::Tensor rows = with_rows(input);
  const Rows x = rows_of(rows, "input");
  args.x = x.data;
  args.x_stride = x.stride;
  run(dtype, args, x.count);
}

void add_norm(at::Tensor& input, at::Tensor& residual, const OptionalTensor& weight, double epsilon,
              float weight_offset) {
  check_same_dtype(residual, "residual", input, "input");
  check_shape(residual, input.sizes(), "residual");
  if (!has_rows(input) || !has_rows(residual)) {
    at::Tensor x = input.contiguous(), r = residual.contiguous();
    add_norm(x, r, weight, epsilon, weight_offset);
    input.copy_(x);
    residual.copy_(r);
    return;
  }
  const Rows x = rows_of(input, "input");
  const Rows r = rows_of(residual, "residual");
  NormArgs args{};
  args.x = args.y = x.data;
  args.x_stride = args.y_stride = x.stride;
  args.residual = r.data;
  args.residual_stride = r.stride;
  args.weight = weight_data(weight, input, x.size);
  args.weight_offset = weight_offset;
  args.hidden = x.size;
  args.epsilon = static_cast<float>(epsilon);
  run(dtype_of(input, "input"), args, x.count);
}

// Of [tokens, heads, channels] each head is a row of its own.
Heads rows_of_heads(const at::Tensor& tensor, const at::Tensor& like, const char* name) {
  check_same_dtype(tensor, name, like, "input");
  check_shape(tensor, like.sizes(), name);
  return heads_of(tensor, tensor.size(2), name);
}

}  // namespace

void rms_norm(at::Tensor& out, const at::Tensor& input, const OptionalTensor& weight,
              double epsilon) {
  norm(out, input, weight, epsilon, 0.0f);
}

void fused_add_rms_norm(at::Tensor& input, at::Tensor& residual, const OptionalTensor& weight,
                        double epsilon) {
  add_norm(input, residual, weight, epsilon, 0.0f);
}

void gemma_rms_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                    double epsilon) {
  norm(out, input, weight, epsilon, 1.0f);
}

void fused_add_gemma_rms_norm(at::Tensor& input, at::Tensor& residual, const at::Tensor& weight,
                              double epsilon) {
  add_norm(input, residual, weight, epsilon, 1.0f);
}

void layer_norm(at::Tensor& out, const at::Tensor& input, const OptionalTensor& residual,
                const OptionalTensor& weight, const OptionalTensor& bias, double epsilon) {
  check_same_dtype(out, "out", input, "input");
  check_shape(out, input.sizes(), "out");
  const at::Tensor x_rows = with_rows(input);
  const Rows x = rows_of(x_rows, "input");
  const Rows y = rows_of(out, "out");
  LayerNormArgs args{};
  args.x = x.data;
  args.x_stride = x.stride;
  at::Tensor residual_rows;
  if (residual) {
    check_same_dtype(*residual, "residual", input, "input");
    check_shape(*residual, input.sizes(), "residual");
    residual_rows = with_rows(*residual);
    const Rows r = rows_of(residual_rows, "residual");
    args.residual = r.data;
    args.residual_stride = r.stride;
  }
  args.weight = weight_data(weight, input, x.size);
  args.bias = weight_data(bias, input, x.size, "bias");
  args.y = y.data;
  args.y_stride = y.stride;
  args.hidden = x.size;
  args.epsilon = static_cast<float>(epsilon);
  parallel_slices(x.count, row_grain(args.hidden),
                  [=, dtype = dtype_of(input, "input")](Slice rows) {
                    kernels().layer_norm(dtype, args, rows);
                  });
}

void gated_rms_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& gate,
                    const at::Tensor& weight, double epsilon, bool gate_first,
                    c10::string_view activation) {
  TORCH_CHECK_VALUE(input.dim() == 3, "input has shape ", input.sizes(),
                    ", expected [tokens, heads, channels].");
  TORCH_CHECK_VALUE(activation == "silu" || activation == "sigmoid",
                    "a norm's gate goes through silu or sigmoid, not through ", activation, ".");
  const at::Tensor x_heads = with_heads(input), gate_heads = with_heads(gate);
  const Heads x = rows_of_heads(x_heads, input, "input");
  const Heads z = rows_of_heads(gate_heads, input, "gate");
  const Heads y = rows_of_heads(out, input, "out");
  const int64_t size = input.size(2);
  check_same_dtype(weight, "weight", input, "input");
  TORCH_CHECK_VALUE(
      weight.is_contiguous() && (weight.numel() == size || weight.numel() == x.heads * size),
      "weight has shape ", weight.sizes(), ", expected [", size, "] or [", x.heads, ", ", size,
      "], contiguous.");
  NormArgs args{};
  args.hidden = size;
  args.epsilon = static_cast<float>(epsilon);
  args.gate_activation = activation == "silu" ? Activation::kSilu : Activation::kSigmoid;
  args.gate_first = gate_first;
  const int64_t item = input.itemsize();
  const int64_t weight_step = weight.numel() == size ? 0 : size * item;
  const void* const w = weight.data_ptr();
  const DType dtype = dtype_of(input, "input");
  // An exponential costs about as much as 8 plain elements.
  parallel_slices(x.tokens, row_grain(8 * x.heads * size), [=](Slice tokens) {
    const auto at = [item](const Heads& of, int64_t t, int64_t h) {
      return static_cast<char*>(of.data) + (t * of.token_stride + h * of.head_stride) * item;
    };
    for (int64_t t = tokens.begin; t < tokens.end; ++t)
      for (int h = 0; h < x.heads; ++h) {
        NormArgs row = args;
        row.x = at(x, t, h);
        row.gate = at(z, t, h);
        row.y = at(y, t, h);
        row.weight = static_cast<const char*>(w) + h * weight_step;
        kernels().rms_norm(dtype, row, {0, 1});
      }
  });
}

}  // namespace cpu_backend

// The products of low-rank adapters: check, view, hand blocks of tokens and outputs to the kernel.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

constexpr int64_t kItemTokens = 64;  // at most: their rows stay in L2 from output to output

// What both products share; `inputs` and `outputs` are those of the weights.
struct AdapterProduct {
  LoraArgs args;
  int64_t tokens, outputs;
};

AdapterProduct adapter_product_of(const at::Tensor& y, const at::Tensor& x,
                                  const at::Tensor& weights, const at::Tensor& adapters) {
  TORCH_CHECK_VALUE(weights.dim() == 3 || (weights.dim() == 4 && weights.size(1) == 1),
                    "weights has shape ", weights.sizes(),
                    ", expected [adapters, outputs, inputs] or [adapters, 1, outputs, inputs].");
  TORCH_CHECK_VALUE(weights.is_contiguous(), "weights must be contiguous.");
  TORCH_CHECK_VALUE(
      y.dim() == 2 && x.dim() == 2 && x.size(0) == y.size(0) && x.size(1) == weights.size(-1),
      "x has shape ", x.sizes(), " and y ", y.sizes(), " beside weights of ", weights.sizes(),
      "; they must agree.");
  check_shape(adapters, {x.size(0)}, "adapters");
  const Rows in = rows_of(x, "x"), out = rows_of(y, "y");
  LoraArgs args{};
  args.x = in.data;
  args.x_stride = in.stride;
  args.y = out.data;
  args.y_stride = out.stride;
  args.weights = weights.const_data_ptr();
  args.adapter_stride = weights.size(-2) * weights.size(-1);
  args.adapters = typed_data<int64_t>(adapters, "adapters");
  args.inputs = weights.size(-1);
  return {args, x.size(0), weights.size(-2)};
}

// f(tokens, outputs, scratch) over blocks, of a multiple of `step` outputs each, that pay a thread.
template <class F>
void parallel_blocks(const AdapterProduct& product, int64_t step, int64_t scratch_floats,
                     const F& f) {
  const int64_t tokens = product.tokens, outputs = product.outputs;
  const int64_t at_once = std::max<int64_t>(1, std::min(tokens, kItemTokens));
  const int64_t width = round_up(row_grain(at_once * product.args.inputs), step);
  const int64_t blocks = ceil_div(outputs, width);
  parallel_items([=] { return ceil_div(tokens, kItemTokens) * blocks; }, scratch_floats,
                 [=](int64_t item, float* scratch) {
                   const int64_t token = item / blocks * kItemTokens;
                   const int64_t output = item % blocks * width;
                   f(Slice{token, std::min(tokens, token + kItemTokens)},
                     Slice{output, std::min(outputs, output + width)}, scratch);
                 });
}

}  // namespace

void lora_shrink(at::Tensor& y, const at::Tensor& x, const at::Tensor& weights,
                 const at::Tensor& adapters, double scale) {
  const at::Tensor rows = with_rows(x);
  check_same_dtype(x, "x", weights, "weights");
  TORCH_CHECK_TYPE(y.scalar_type() == at::kFloat, "y has dtype ", y.scalar_type(),
                   ", expected float32.");
  AdapterProduct product = adapter_product_of(y, rows, weights, adapters);
  check_shape(y, {product.tokens, product.outputs}, "y");
  product.args.scale = static_cast<float>(scale);
  parallel_blocks(
      product, kernels().lora_tile, 0,
      [args = product.args, type = dtype_of(x, "x")](Slice tokens, Slice outputs, float*) {
        kernels().lora_shrink(type, args, tokens, outputs);
      });
}

void lora_expand(at::Tensor& y, const at::Tensor& x, const at::Tensor& weights,
                 const at::Tensor& adapters) {
  const at::Tensor rows = with_rows(x);
  if (y.scalar_type() != at::kFloat) check_same_dtype(y, "y", weights, "weights");
  TORCH_CHECK_TYPE(x.scalar_type() == at::kFloat, "x has dtype ", x.scalar_type(),
                   ", expected float32.");
  AdapterProduct product = adapter_product_of(y, rows, weights, adapters);
  product.outputs = std::min(product.outputs, y.size(1));
  parallel_blocks(product, kernels().panel_width,
                  kernels().lora_expand_scratch_floats(product.args.inputs),
                  [args = product.args, type = dtype_of(weights, "weights"),
                   y_type = dtype_of(y, "y")](Slice tokens, Slice outputs, float* scratch) {
                    kernels().lora_expand(type, y_type, args, tokens, outputs, scratch);
                  });
}

}  // namespace cpu_backend

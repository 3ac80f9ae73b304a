// rms_norm and fused_add_rms_norm: check, view, hand rows to the kernel.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

void run(DType dtype, const NormArgs& args, int64_t rows) {
  parallel_slices(rows, row_grain(args.hidden),
                  [=](Slice slice) { kernels().rms_norm(dtype, args, slice); });
}

const void* weight_data(const std::optional<at::Tensor>& weight, const at::Tensor& input,
                        int64_t hidden) {
  if (!weight) return nullptr;
  check_same_dtype(*weight, "weight", input, "input");
  check_shape(*weight, {hidden}, "weight");
  check_dense_last_dim(*weight, "weight");
  return weight->data_ptr();
}

}  // namespace

void rms_norm(at::Tensor& out, const at::Tensor& input, const std::optional<at::Tensor>& weight,
              double epsilon) {
  check_same_dtype(out, "out", input, "input");
  check_shape(out, input.sizes(), "out");
  const DType dtype = dtype_of(input, "input");
  const Rows y = rows_of(out, "out");
  const void* w = weight_data(weight, input, y.size);
  NormArgs args{nullptr, 0, nullptr, 0, w, y.data, y.stride, y.size, static_cast<float>(epsilon)};
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

void fused_add_rms_norm(at::Tensor& input, at::Tensor& residual,
                        const std::optional<at::Tensor>& weight, double epsilon) {
  check_same_dtype(residual, "residual", input, "input");
  check_shape(residual, input.sizes(), "residual");
  if (!has_rows(input) || !has_rows(residual)) {
    at::Tensor x = input.contiguous(), r = residual.contiguous();
    fused_add_rms_norm(x, r, weight, epsilon);
    input.copy_(x);
    residual.copy_(r);
    return;
  }
  const Rows x = rows_of(input, "input");
  const Rows r = rows_of(residual, "residual");
  const void* w = weight_data(weight, input, x.size);
  run(dtype_of(input, "input"),
      {x.data, x.stride, r.data, r.stride, w, x.data, x.stride, x.size,
       static_cast<float>(epsilon)},
      x.count);
}

}  // namespace cpu_backend

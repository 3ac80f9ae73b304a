// rms_norm and fused_add_rms_norm: check, view, hand rows to the kernel.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

void run(DType dtype, const NormArgs& args, int64_t rows) {
  parallel_slices(rows, row_grain(args.hidden),
                  [&](Slice slice) { kernels().rms_norm(dtype, args, slice); });
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
  // Heads cut out of a merged projection are strided twice; only those are copied.
  const at::Tensor source = input.dim() > 2 && !input.is_contiguous() ? input.contiguous() : input;
  const Rows x = rows_of(source, "input");
  const Rows y = rows_of(out, "out");
  const void* w = weight_data(weight, input, x.size);
  run(dtype_of(input, "input"),
      {x.data, x.stride, nullptr, 0, w, y.data, y.stride, x.size, static_cast<float>(epsilon)},
      x.count);
}

void fused_add_rms_norm(at::Tensor& input, at::Tensor& residual,
                        const std::optional<at::Tensor>& weight, double epsilon) {
  check_same_dtype(residual, "residual", input, "input");
  check_shape(residual, input.sizes(), "residual");
  const Rows x = rows_of(input, "input");
  const Rows r = rows_of(residual, "residual");
  const void* w = weight_data(weight, input, x.size);
  run(dtype_of(input, "input"),
      {x.data, x.stride, r.data, r.stride, w, x.data, x.stride, x.size,
       static_cast<float>(epsilon)},
      x.count);
}

}  // namespace cpu_backend

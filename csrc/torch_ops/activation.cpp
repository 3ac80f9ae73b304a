// Activations under the host's names.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {

void activation(at::Tensor& out, const at::Tensor& input, Activation kind, Gate gate) {
  check_same_dtype(out, "out", input, "input");
  const at::Tensor rows = with_rows(input);
  const Rows x = rows_of(rows, "input");
  const Rows y = rows_of(out, "out");
  const int64_t factor = gate == Gate::kNone ? 1 : 2;
  TORCH_CHECK_VALUE(x.size == factor * y.size && x.count == y.count, "out has shape ", out.sizes(),
                    ", which does not fit the input ", input.sizes(), ".");
  const ActivationArgs args{
      x.data, x.stride, y.data, y.stride, y.size, kind, gate != Gate::kNone, gate == Gate::kSecond};
  const DType dtype = dtype_of(input, "input");
  // An exponential costs about as much as 8 plain elements.
  parallel_slices(x.count, row_grain(8 * y.size),
                  [=](Slice rows) { kernels().activation(dtype, args, rows); });
}

}  // namespace cpu_backend

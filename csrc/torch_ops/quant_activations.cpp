// The host's ops that turn tensors into int8 and fp8, under its names.
#include "torch_ops/adapters.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

Int8RowsArgs int8_args(at::Tensor& out, const at::Tensor& input, const Rows& rows) {
  TORCH_CHECK_TYPE(out.scalar_type() == at::kChar, "output has dtype ", out.scalar_type(),
                   ", expected int8.");
  TORCH_CHECK_VALUE(out.is_contiguous() && out.numel() == input.numel(), "output has shape ",
                    out.sizes(), ", expected a dense ", input.sizes(), ".");
  Int8RowsArgs args{};
  args.x = rows.data;
  args.x_stride = rows.stride;
  args.size = rows.size;
  args.codes = out.data_ptr<int8_t>();
  return args;
}

void run_int8_rows(DType dtype, const Rows& rows, const Int8RowsArgs& args) {
  if (rows.size == 0) return;
  parallel_slices(rows.count, row_grain(rows.size),
                  [=](Slice slice) { kernels().int8_rows(dtype, args, slice); });
}

// fp32 scales of e4m3 codes for values up to `largest`, whatever its shape; not so small that
// values of 1 / scale overflow.
at::Tensor fp8_scales(const at::Tensor& largest) {
  constexpr float kLargestCode = 448.0f;
  return (largest.to(at::kFloat) / kLargestCode).clamp_min(1.0f / (kLargestCode * 512.0f));
}

at::Tensor row_maxima(const at::Tensor& input) { return input.abs().amax(-1, /*keepdim=*/true); }

}  // namespace

void static_scaled_int8_quant(at::Tensor& out, const at::Tensor& input, const at::Tensor& scale,
                              const OptionalTensor& azp) {
  const at::Tensor x = with_rows(input);
  const Rows rows = rows_of(x, "input");
  Int8RowsArgs args = int8_args(out, input, rows);
  TORCH_CHECK_VALUE(scale.numel() == 1, "a static scale is one number, this one is ", scale.sizes(),
                    ".");
  args.is_static = true;
  args.scales = const_cast<float*>(typed_data<float>(scale, "scale"));
  if (azp) {
    TORCH_CHECK_VALUE(azp->numel() == 1, "a static zero point is one number, this one is ",
                      azp->sizes(), ".");
    args.zeros = const_cast<int32_t*>(typed_data<int32_t>(*azp, "azp"));
  }
  run_int8_rows(dtype_of(input, "input"), rows, args);
}

void dynamic_scaled_int8_quant(at::Tensor& out, const at::Tensor& input, at::Tensor& scale,
                               const OptionalTensor& azp) {
  const at::Tensor x = with_rows(input);
  const Rows rows = rows_of(x, "input");
  Int8RowsArgs args = int8_args(out, input, rows);
  TORCH_CHECK_VALUE(scale.numel() == rows.count, "scales have shape ", scale.sizes(),
                    ", expected one per row of ", rows.count, ".");
  args.scales = const_cast<float*>(typed_data<float>(scale, "scale"));
  if (azp) {
    TORCH_CHECK_VALUE(azp->numel() == rows.count, "zero points have shape ", azp->sizes(),
                      ", expected one per row of ", rows.count, ".");
    args.zeros = const_cast<int32_t*>(typed_data<int32_t>(*azp, "azp"));
  }
  run_int8_rows(dtype_of(input, "input"), rows, args);
}

void static_scaled_fp8_quant(at::Tensor& result, const at::Tensor& input, const at::Tensor& scale,
                             std::optional<at::IntArrayRef> group_shape) {
  const at::Tensor x = with_rows(input), scales = scale.contiguous();
  const Rows rows = rows_of(x, "input");
  TORCH_CHECK_TYPE(result.scalar_type() == at::kFloat8_e4m3fn, "output has dtype ",
                   result.scalar_type(), ", expected float8_e4m3fn.");
  TORCH_CHECK_VALUE(input.dim() == 2 && result.is_contiguous() && result.sizes() == input.sizes(),
                    "output has shape ", result.sizes(), ", expected a dense matrix ",
                    input.sizes(), ".");
  const float* values = typed_data<float>(scales, "scale");
  if (rows.count == 0 || rows.size == 0) return;
  // A group of -1 is the whole extent; without a shape the scale's own sizes give it.
  const bool matrix = scale.dim() == 2;
  TORCH_CHECK_VALUE(scale.numel() == 1 || matrix || group_shape, "scales of shape ", scale.sizes(),
                    " need a group_shape.");
  const auto extent = [&](int64_t i, int64_t size) {
    if (group_shape && (*group_shape)[i] > 0) return (*group_shape)[i];
    return matrix && !group_shape ? ceil_div(size, std::max<int64_t>(1, scale.size(i))) : size;
  };
  Fp8RowsArgs args{};
  args.x = rows.data;
  args.x_stride = rows.stride;
  args.size = rows.size;
  args.scales = values;
  args.row_group = scale.numel() == 1 ? rows.count : extent(0, rows.count);
  args.column_group = scale.numel() == 1 ? rows.size : extent(1, rows.size);
  const int64_t columns = ceil_div(rows.size, args.column_group);
  args.scale_row_stride = columns;
  args.scale_column_stride = 1;
  TORCH_CHECK_VALUE(scale.numel() == ceil_div(rows.count, args.row_group) * columns,
                    "scales of shape ", scale.sizes(), " do not fit groups of ", args.row_group,
                    " by ", args.column_group, " in ", input.sizes(), ".");
  args.codes = static_cast<uint8_t*>(result.data_ptr());
  const DType dtype = dtype_of(input, "input");
  parallel_slices(rows.count, row_grain(rows.size),
                  [=](Slice slice) { kernels().fp8_rows(dtype, args, slice); });
}

void dynamic_scaled_fp8_quant(at::Tensor& result, const at::Tensor& input, at::Tensor& scale) {
  if (input.numel() == 0) return;
  scale.copy_(fp8_scales(input.abs().max()).expand_as(scale));
  at::Tensor codes = result.slice(0, 0, input.size(0));  // below them is padding
  static_scaled_fp8_quant(codes, input, scale, std::nullopt);
}

void dynamic_per_token_scaled_fp8_quant(at::Tensor& result, const at::Tensor& input,
                                        at::Tensor& scale, const OptionalTensor& scale_ub) {
  if (input.numel() == 0) return;
  const at::Tensor maxima = row_maxima(input).to(at::kFloat);
  const at::Tensor scales =
      fp8_scales(scale_ub ? maxima.clamp_max(scale_ub->item<float>()) : maxima);
  at::Tensor codes = result.slice(0, 0, input.size(0));
  static_scaled_fp8_quant(codes, input, scales, std::nullopt);
  scale.slice(0, 0, input.size(0)).copy_(scales);
}

std::tuple<at::Tensor, at::Tensor> quantize_fp8e4m3(const at::Tensor& input, bool channelwise,
                                                    const OptionalTensor& scale_opt) {
  TORCH_CHECK_VALUE(input.dim() == 2, "input must be a matrix, it is ", input.sizes(), ".");
  at::Tensor codes = at::empty(input.sizes(), at::kFloat8_e4m3fn);
  const at::Tensor scales = scale_opt     ? scale_opt->to(at::kFloat)
                            : channelwise ? fp8_scales(row_maxima(input))
                                          : fp8_scales(input.abs().max());
  const int64_t rows = channelwise ? input.size(0) : 1;
  TORCH_CHECK_VALUE(scales.numel() == rows, "scales have shape ", scales.sizes(), ", expected ",
                    channelwise ? "one per row of " : "one number: ", rows, ".");
  static_scaled_fp8_quant(codes, input, scales.reshape({rows, 1}), std::nullopt);
  return {codes, scales.reshape({rows})};
}

}  // namespace cpu_backend

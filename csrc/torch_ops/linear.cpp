// Linear layers: packing and running unquantized weights, behind the host's three names for it, and
// the one op that runs any packed weight (quantized ones: quant_linear.cpp).
//
// The host packs a weight once ("create"), keeps the number it gets, frees its own copy and calls
// with activations from then on.  The names say oneDNN because the host's own code does; what runs
// here is this project's packed GEMM (kernels/gemm.h).
#include "torch_ops/ops.h"
#include "torch_ops/packed_linear.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"
#include "torch_ops/weight_memory.h"

namespace cpu_backend {

const PackedLinear& packed_linear(int64_t handle) {
  TORCH_CHECK_VALUE(handle != 0, "this linear layer has no packed weight.");
  return *reinterpret_cast<const PackedLinear*>(handle);
}

namespace {

constexpr int64_t kCacheBytes = 256 * 1024;  // what a thread may count on in L2, half of it

struct GemmSplit {
  int64_t row_step, panel_step;
};

// Rows per item so that their activations stay in L2 while the panels pass by; panels per item so
// that every thread gets about eight items, and wide groups stay whole.
GemmSplit split_gemm(int64_t m, int64_t k, int64_t panels, int64_t wide, int64_t threads) {
  constexpr int64_t kTileRows = 12;  // a multiple of every target's tile
  const int64_t fitting = kCacheBytes / (k * static_cast<int64_t>(sizeof(float)));
  const int64_t rows = std::max(kTileRows, fitting / kTileRows * kTileRows);
  const int64_t row_step = std::min(m, rows);
  const int64_t row_items = ceil_div(m, row_step);
  const int64_t panel_items = std::max<int64_t>(1, ceil_div(8 * threads, row_items));
  const int64_t panel_step = round_up(ceil_div(panels, panel_items), m == 1 ? wide : 1);
  return {row_step, panel_step};
}

at::Tensor as_float_rows(const at::Tensor& a, DType dtype) {
  if (dtype == DType::kFloat32) return a;
  at::Tensor converted = at::empty(a.sizes(), a.options().dtype(at::kFloat));
  float* data = converted.data_ptr<float>();
  parallel_slices(a.size(0), row_grain(a.size(1)),
                  [=, x = a.data_ptr(), stride = a.stride(0), size = a.size(1)](Slice rows) {
                    kernels().to_float_rows(dtype, x, stride, data, size, rows);
                  });
  return converted;
}

// [..., k] as [tokens, k]; a layout that only a copy can flatten is copied.
at::Tensor as_matrix(const at::Tensor& x) {
  at::Tensor flat = x.reshape({-1, x.size(-1)});
  if (StepRecording* recording = StepRecording::current(); recording && !flat.is_alias_of(x))
    recording->fail("a linear layer's input is strided");
  return flat;
}

void run_linear(const PackedLinear& weight, const at::Tensor& a,
                const std::optional<at::Tensor>& bias, const at::Tensor& c) {
  TORCH_CHECK_TYPE(weight.quantized || a.scalar_type() == weight.dtype, "activations have dtype ",
                   a.scalar_type(), " but the weight was packed as ", weight.dtype, ".");
  const bool float_output = c.scalar_type() == at::kFloat;
  if (!float_output) check_same_dtype(c, "output", a, "input");
  TORCH_CHECK_VALUE(a.dim() == 2 && a.size(1) == weight.k, "input has shape ", a.sizes(),
                    ", the weight needs [tokens, ", weight.k, "].");
  check_dense_last_dim(a, "input");
  const Rows out = rows_of(c, "output");
  const int64_t m = a.size(0);
  TORCH_CHECK_VALUE(out.size == weight.n && out.count == m, "output has shape ", c.sizes(),
                    ", expected [", m, ", ", weight.n, "].");
  if (bias) {
    check_same_dtype(*bias, "bias", a, "input");
    check_shape(*bias, {weight.n}, "bias");
    check_dense_last_dim(*bias, "bias");
  }
  if (m == 0) return;
  const DType dtype = dtype_of(a, "input");
  if (weight.quantized) return run_quantized(weight, a, bias, c);
  const at::Tensor source = as_float_rows(a, dtype);
  const GemmArgs args{source.const_data_ptr<float>(),
                      source.stride(0),
                      weight.packed.const_data_ptr(),
                      bias ? bias->const_data_ptr() : nullptr,
                      out.data,
                      out.stride,
                      float_output,
                      m,
                      weight.n,
                      weight.k};
  const KernelTable& table = kernels();
  const int64_t panels = ceil_div(weight.n, table.panel_width);
  const GemmSplit step = split_gemm(m, weight.k, panels, table.wide_panels, at::get_num_threads());
  const int64_t panel_items = ceil_div(panels, step.panel_step);
  const int64_t items = panel_items * ceil_div(m, step.row_step);
  const auto run_item = [=, gemm = table.gemm](int64_t item, float* scratch) {
    const int64_t row = item / panel_items * step.row_step;
    const int64_t panel = item % panel_items * step.panel_step;
    gemm(dtype, args, {row, std::min(row + step.row_step, m)},
         {panel, std::min(panel + step.panel_step, panels)}, scratch);
  };
  parallel_items([items] { return items; }, table.gemm_scratch_floats, run_item);
}

}  // namespace

int64_t create_linear(const at::Tensor& weight, int64_t) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "a linear weight must be a matrix, this one is ",
                    weight.sizes(), ".");
  TORCH_CHECK_VALUE(weight.numel() > 0, "a linear weight must have rows and columns, this one is ",
                    weight.sizes(), ".");
  const DType dtype = dtype_of(weight, "weight");
  const int64_t k = weight.size(0);
  const int64_t n = weight.size(1);
  const KernelTable& table = kernels();
  auto linear = std::make_unique<PackedLinear>();
  linear->packed = WeightMemory::allocate(table.packed_elements(dtype, n, k), weight.options());
  linear->dtype = weight.scalar_type();
  linear->n = n;
  linear->k = k;
  const PackArgs args{weight.data_ptr(),        weight.stride(1), weight.stride(0), n, k,
                      linear->packed.data_ptr()};
  parallel_slices(ceil_div(n, table.panel_width), row_grain(k * table.panel_width),
                  [&](Slice panels) { table.pack_weight(dtype, args, panels); });
  return reinterpret_cast<int64_t>(linear.release());
}

void release_linear(int64_t handle) { delete reinterpret_cast<PackedLinear*>(handle); }

at::Tensor linear(const at::Tensor& x, int64_t handle, int64_t out_features,
                  const std::optional<at::Tensor>& bias, bool float_output) {
  const PackedLinear& weight = packed_linear(handle);
  TORCH_CHECK_VALUE(out_features == weight.n, "the packed weight has ", weight.n,
                    " output features, not ", out_features, ".");
  at::DimVector shape(x.sizes());
  shape.back() = weight.n;
  at::Tensor out = at::empty(shape, float_output ? x.options().dtype(at::kFloat) : x.options());
  const bool flat = x.dim() == 2;
  at::Tensor rows = flat ? out : out.view({-1, weight.n});
  run_linear(weight, flat ? x : as_matrix(x), bias, rows);
  return out;
}

at::Tensor packed_rows(const at::Tensor& ids, int64_t handle) {
  const PackedLinear& weight = packed_linear(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(!weight.quantized, "rows of a quantized weight cannot be read.");
  typed_data<int64_t>(ids, "ids");
  at::DimVector shape(ids.sizes());
  shape.push_back(weight.k);
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(weight.dtype));
  const DType dtype = dtype_of(out, "out");
  const UnpackArgs args{weight.packed.const_data_ptr(), ids.const_data_ptr<int64_t>(),
                        out.data_ptr(), weight.k, weight.k};
  parallel_slices(ids.numel(), row_grain(8 * weight.k), [=, n = weight.n](Slice rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r)
      TORCH_CHECK_INDEX(args.ids[r] >= 0 && args.ids[r] < n, "token id ", args.ids[r],
                        " is outside the vocabulary of ", n, ".");
    kernels().unpack_rows(dtype, args, rows);
  });
  return out;
}

void onednn_mm(at::Tensor& c, const at::Tensor& a, const std::optional<at::Tensor>& bias,
               const at::Tensor& handle) {
  run_linear(packed_linear(handle.item<int64_t>()), a, bias, c);
}

}  // namespace cpu_backend

// Unquantized linear layers behind the host's three names for it.
//
// The host packs a weight once ("create"), keeps the number it gets, frees its own copy and calls
// with activations from then on.  The names say oneDNN because the host's own code does; what runs
// here is this project's packed GEMM (kernels/gemm.h).
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/product.h"
#include "torch_ops/views.h"
#include "torch_ops/weight_memory.h"

namespace cpu_backend {
const PackedLinear& packed_linear(int64_t handle) {
  TORCH_CHECK_VALUE(handle != 0, "this linear layer has no packed weight.");
  return *reinterpret_cast<const PackedLinear*>(handle);
}

void check_parts(int64_t n, int64_t parts) {
  TORCH_CHECK_VALUE(parts >= 1 && parts <= 2 && n % parts == 0, n,
                    " output features cannot be packed in ", parts, " equal parts.");
}

namespace {

int64_t pack(const at::Tensor& weight, int64_t n, int64_t k, int64_t n_stride, int64_t k_stride,
             int64_t parts) {
  TORCH_CHECK_VALUE(n > 0 && k > 0, "a linear weight must have rows and columns, this one is ",
                    weight.sizes(), ".");
  check_parts(n, parts);
  const DType dtype = dtype_of(weight, "weight");
  const KernelTable& table = kernels();
  auto linear = std::make_unique<PackedLinear>();
  linear->dtype = weight.scalar_type();
  linear->n = n;
  linear->k = k;
  linear->parts = static_cast<int>(parts);
  linear->packed =
      WeightMemory::allocate(table.packed_elements(dtype, n, k, linear->parts), weight.options());
  const PackArgs args{weight.data_ptr(),        n_stride, k_stride, n, k, linear->parts,
                      linear->packed.data_ptr()};
  parallel_slices(table.panel_count(n, linear->parts), row_grain(k * table.panel_width),
                  [&](Slice panels) { table.pack_weight(dtype, args, panels); });
  return reinterpret_cast<int64_t>(linear.release());
}

// [..., k] as [tokens, k]; a layout that only a copy can flatten is copied.
at::Tensor token_rows(const at::Tensor& x) {
  if (x.dim() == 2 && is_dense_in_last_dim(x)) return x;
  return with_rows(x.reshape({-1, x.size(-1)}));
}

// c = a * weight^T and what `epilogue` says; a [m, k], c [m, columns].
void run_linear(const PackedLinear& weight, const at::Tensor& a,
                const std::optional<at::Tensor>& bias, GemmEpilogue epilogue, const at::Tensor& c) {
  TORCH_CHECK_TYPE(weight.quantized || a.scalar_type() == weight.dtype, "activations have dtype ",
                   a.scalar_type(), " but the weight was packed as ", weight.dtype, ".");
  const bool float_output = c.scalar_type() == at::kFloat;
  if (!float_output) check_same_dtype(c, "output", a, "input");
  TORCH_CHECK_VALUE(a.dim() == 2 && a.size(1) == weight.k, "input has shape ", a.sizes(),
                    ", the weight needs [tokens, ", weight.k, "].");
  check_dense_last_dim(a, "input");
  const Rows out = rows_of(c, "output");
  const int64_t m = a.size(0);
  const int64_t columns = epilogue.gated ? weight.n / 2 : weight.n;
  TORCH_CHECK_VALUE(out.size == columns && out.count == m, "output has shape ", c.sizes(),
                    ", expected [", m, ", ", columns, "].");
  if (bias) {
    check_same_dtype(*bias, "bias", a, "input");
    check_shape(*bias, {weight.n}, "bias");
    check_dense_last_dim(*bias, "bias");
    epilogue.bias = bias->const_data_ptr();
  }
  if (m == 0) return;
  Product product{};
  product.weight = &weight;
  product.dtype = dtype_of(a, "input");
  product.m = m;
  product.rows = a.data_ptr();
  product.rows_stride = a.stride(0);
  product.epilogue = epilogue;
  product.epilogue.c = out.data;
  product.epilogue.c_stride = out.stride;
  product.epilogue.float_output = float_output;
  at::Tensor taken;
  if (weight.meets_integers() || kernels().rows_collide(product.dtype, m, product.rows_stride)) {
    taken = at::empty({m, product_row_bytes(weight, a.element_size())}, at::kByte);
    product.rows = taken.data_ptr();
    product.rows_stride = padded_depth(weight.k);
    parallel_slices(m, row_grain(weight.k),
                    [=, x = a.const_data_ptr(), stride = a.stride(0)](Slice rows) {
                      product.take_rows(x, stride, rows);
                    });
  }
  run_product(product);
}

}  // namespace

int64_t create_linear(const at::Tensor& weight, int64_t) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "a linear weight must be a matrix, this one is ",
                    weight.sizes(), ".");
  return pack(weight, weight.size(1), weight.size(0), weight.stride(1), weight.stride(0), 1);
}

int64_t pack_linear(const at::Tensor& weight, int64_t parts) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "a linear weight must be a matrix, this one is ",
                    weight.sizes(), ".");
  return pack(weight, weight.size(0), weight.size(1), weight.stride(0), weight.stride(1), parts);
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
  run_linear(weight, token_rows(x), bias, {}, x.dim() == 2 ? out : out.view({-1, weight.n}));
  return out;
}

at::Tensor packed_rows(const at::Tensor& ids, int64_t handle) {
  const PackedLinear& weight = packed_linear(handle);
  TORCH_CHECK_NOT_IMPLEMENTED(!weight.quantized && weight.parts == 1,
                              "a weight that is quantized or packed in parts gives no rows back.");
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

void linear_add(at::Tensor& residual, const at::Tensor& x, int64_t handle,
                const std::optional<at::Tensor>& bias) {
  const PackedLinear& weight = packed_linear(handle);
  check_same_dtype(residual, "residual", x, "input");
  GemmEpilogue epilogue{};
  epilogue.residual = residual.const_data_ptr();
  epilogue.residual_stride = rows_of(residual, "residual").stride;
  run_linear(weight, token_rows(x), bias, epilogue, residual);
}

void linear_act(at::Tensor& out, const at::Tensor& x, int64_t handle,
                const std::optional<at::Tensor>& bias, c10::string_view activation) {
  check_same_dtype(out, "output", x, "input");
  GemmEpilogue epilogue{};
  epilogue.activated = true;
  epilogue.activation = activation_named(activation);
  TORCH_CHECK_VALUE(!needs_gate(epilogue.activation), activation,
                    " takes a gate and a projection: call linear_act_and_mul.");
  run_linear(packed_linear(handle), token_rows(x), bias, epilogue, out);
}

void linear_act_and_mul(at::Tensor& out, const at::Tensor& x, int64_t handle,
                        const std::optional<at::Tensor>& bias, c10::string_view activation) {
  const PackedLinear& weight = packed_linear(handle);
  TORCH_CHECK_VALUE(weight.parts == 2,
                    "the weight must be packed in 2 parts to have its halves multiplied.");
  check_same_dtype(out, "output", x, "input");
  GemmEpilogue epilogue{};
  epilogue.gated = true;
  epilogue.activation = activation_named(activation);
  TORCH_CHECK_VALUE(may_have_gate(epilogue.activation), activation,
                    " is not there with a gate: call linear_act.");
  run_linear(weight, token_rows(x), bias, epilogue, out);
}

void linear_heads(at::Tensor& out, const at::Tensor& x, at::IntArrayRef handles) {
  const auto heads = static_cast<int64_t>(handles.size());
  TORCH_CHECK_VALUE(heads > 0 && x.dim() == 3 && out.dim() == 3, heads,
                    " heads take [tokens, heads, channels], not ", x.sizes(), " and ", out.sizes(),
                    ".");
  const PackedLinear& first = packed_linear(handles[0]);
  check_shape(x, {x.size(0), heads, first.k}, "input");
  check_shape(out, {x.size(0), heads, first.n}, "output");
  check_dense_last_dim(x, "input");
  check_dense_last_dim(out, "output");
  check_same_dtype(out, "output", x, "input");
  const auto weights = std::make_shared<std::vector<const PackedLinear*>>();
  for (const int64_t handle : handles) {
    const PackedLinear& weight = packed_linear(handle);
    TORCH_CHECK_VALUE(!weight.quantized && weight.dtype == x.scalar_type() && weight.n == first.n &&
                          weight.k == first.k,
                      "the weight of every head must be [", first.n, ", ", first.k,
                      "] in the input's dtype.");
    weights->push_back(&weight);
  }
  Product common{};
  common.weight = &first;
  common.dtype = dtype_of(x, "input");
  common.m = x.size(0);
  common.rows = x.data_ptr();
  common.rows_stride = x.stride(0);
  common.epilogue.c = out.data_ptr();
  common.epilogue.c_stride = out.stride(0);
  if (common.m == 0) return;
  // Heads share the threads, so each is cut for its share of them.
  const GemmPlan plan = common.plan(ceil_div(at::get_num_threads(), heads));
  if (StepRecording* recording = StepRecording::current()) recording->keep(weights);
  parallel_items([=] { return heads * plan.items(); }, product_scratch_floats(first),
                 [=, weight_of = weights->data(), row_bytes = x.stride(1) * x.element_size(),
                  c_bytes = out.stride(1) * x.element_size()](int64_t item, float* scratch) {
                   const int64_t head = item / plan.items();
                   Product product = common;
                   product.weight = weight_of[head];
                   product.rows = static_cast<char*>(common.rows) + head * row_bytes;
                   product.epilogue.c = static_cast<char*>(common.epilogue.c) + head * c_bytes;
                   product.run(plan, item % plan.items(), scratch);
                 });
}

void onednn_mm(at::Tensor& c, const at::Tensor& a, const std::optional<at::Tensor>& bias,
               const at::Tensor& handle) {
  run_linear(packed_linear(handle.item<int64_t>()), a, bias, {}, c);
}

}  // namespace cpu_backend

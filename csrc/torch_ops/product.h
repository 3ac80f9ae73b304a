// The product of some rows of activations with a packed weight of any kind.
#pragma once

#include "core/gemm_plan.h"
#include "torch_ops/packed_linear.h"

namespace cpu_backend {

// Bytes from one row of activations, of `element_bytes` each, to the next where they are taken for
// the weight's product.
int64_t product_row_bytes(const PackedLinear& weight, int64_t element_bytes);
int64_t product_scratch_floats(const PackedLinear& weight);

// c = rows * weight^T + row_shift * column_shift, then the epilogue.  Plain data: loops copy it.
struct Product {
  const PackedLinear* weight;
  DType dtype;  // of activations
  int64_t m;
  void* rows;           // [m, k] activations; where they become integers take_rows() fills it
  int64_t rows_stride;  // not of integers
  GemmEpilogue epilogue;
  const float* row_shift;
  const float* column_shift;

  GemmPlan plan(int64_t threads) const;
  void run(const GemmPlan& plan, int64_t item, float* scratch) const;

  // Some of the m rows from x, of which row r lies at x + r * x_stride, as the product reads them.
  void take_rows(const void* x, int64_t x_stride, Slice rows) const;
  QuantRows quant_rows() const;
};

// All of it, on all threads.
void run_product(const Product& product);

// The activation after a projection, or between the halves of a gate and up projection.
Activation activation_named(c10::string_view name);

}  // namespace cpu_backend

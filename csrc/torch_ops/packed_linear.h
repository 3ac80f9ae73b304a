// A linear weight in this target's packed order, behind the handles that ops take.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "core/quant.h"

namespace cpu_backend {

// What a weight of codes needs beyond its packed bytes.
struct QuantizedWeight {
  QuantLayout layout;
  at::Tensor channels;  // int32 [layout.k], or undefined: the channels as they come
  float static_scale;
  int32_t static_zero;
  at::Tensor
      column_shift;  // fp32 [n]: column sums in units of the weight, for int8 with zero point
};

struct PackedLinear {
  at::Tensor packed;
  at::ScalarType dtype;  // of the storage; activations have the same unless it is quantized
  int64_t n, k;
  int parts = 1;  // weights side by side, see kernels/epilogue.h
  std::unique_ptr<QuantizedWeight> quantized;

  // Whether rows of activations become integers before they meet it (kernels/formats/integers.h).
  bool meets_integers() const {
    return quantized && quantized->layout.activations != Activations::kFloat;
  }
};

const PackedLinear& packed_linear(int64_t handle);

// Raises ValueError unless n output features have so many equal parts, 1 or 2.
void check_parts(int64_t n, int64_t parts);

}  // namespace cpu_backend

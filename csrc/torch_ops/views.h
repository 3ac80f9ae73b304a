// From tensors to views: every check of shape, type and layout that the ops share.
#pragma once

#include <ATen/ATen.h>

#include "core/view.h"

namespace cpu_backend {

inline DType dtype_of(const at::Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      TORCH_CHECK_TYPE(false, name, " has dtype ", tensor.scalar_type(),
                       "; supported are float32, bfloat16 and float16.");
  }
}

inline void check_same_dtype(const at::Tensor& a, const char* a_name, const at::Tensor& b,
                             const char* b_name) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), a_name, " has dtype ", a.scalar_type(),
                   " but ", b_name, " has ", b.scalar_type(), "; they must agree.");
}

inline bool is_dense_in_last_dim(const at::Tensor& tensor) {
  return tensor.dim() >= 1 && (tensor.size(-1) <= 1 || tensor.stride(-1) == 1);
}

inline void check_dense_last_dim(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(is_dense_in_last_dim(tensor), name,
                    " must be dense in its last dimension, its strides are ", tensor.strides(),
                    ".");
}

inline void check_shape(const at::Tensor& tensor, at::IntArrayRef shape, const char* name) {
  TORCH_CHECK_VALUE(tensor.sizes() == shape, name, " has shape ", tensor.sizes(), ", expected ",
                    shape, ".");
}

template <class T>
const T* typed_data(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == c10::CppTypeToScalarType<T>::value, name, " has dtype ",
                   tensor.scalar_type(), ", expected ", c10::CppTypeToScalarType<T>::value, ".");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), name, " must be contiguous.");
  return tensor.const_data_ptr<T>();
}

// A tensor seen as rows of its last dimension.
struct Rows {
  void* data;
  int64_t count, size, stride;
};

inline bool has_rows(const at::Tensor& tensor) {
  return tensor.is_contiguous() || (tensor.dim() <= 2 && is_dense_in_last_dim(tensor));
}

// What an op only reads: the tensor itself, or a copy where rows_of() would refuse its layout.
inline at::Tensor with_rows(const at::Tensor& tensor) {
  return has_rows(tensor) ? tensor : tensor.contiguous();
}

// Leading dimensions are flattened; the result is empty of rows if the tensor is.
inline Rows rows_of(const at::Tensor& tensor, const char* name) {
  check_dense_last_dim(tensor, name);
  const int64_t size = tensor.size(-1);
  const int64_t count = size == 0 ? 0 : tensor.numel() / size;
  if (tensor.dim() == 1 || tensor.is_contiguous()) return {tensor.data_ptr(), count, size, size};
  TORCH_CHECK_VALUE(has_rows(tensor), name,
                    " must be contiguous or a matrix with dense rows, its strides are ",
                    tensor.strides(), ".");
  return {tensor.data_ptr(), count, size, tensor.stride(0)};
}

// [tokens, heads * head_dim] or [tokens, heads, head_dim] with any token stride.
struct Heads : TokenHeads {
  int64_t tokens;
  int heads;
};

// What an op only reads: the tensor itself, or a copy where heads_of() would refuse its layout.
inline at::Tensor with_heads(const at::Tensor& tensor) {
  return is_dense_in_last_dim(tensor) ? tensor : tensor.contiguous();
}

inline Heads heads_of(const at::Tensor& tensor, int64_t head_dim, const char* name) {
  check_dense_last_dim(tensor, name);
  TORCH_CHECK_VALUE(tensor.dim() == 2 || tensor.dim() == 3, name,
                    " must be [tokens, heads * head_dim] or [tokens, heads, head_dim], it is ",
                    tensor.sizes(), ".");
  if (tensor.dim() == 3) {
    TORCH_CHECK_VALUE(tensor.size(2) == head_dim, name, " has heads of ", tensor.size(2),
                      " channels, expected ", head_dim, ".");
    return {{tensor.data_ptr(), tensor.stride(0), tensor.stride(1)},
            tensor.size(0),
            static_cast<int>(tensor.size(1))};
  }
  TORCH_CHECK_VALUE(tensor.size(1) % head_dim == 0, name, " has ", tensor.size(1),
                    " columns, which is no multiple of the head size ", head_dim, ".");
  return {{tensor.data_ptr(), tensor.stride(0), head_dim},
          tensor.size(0),
          static_cast<int>(tensor.size(1) / head_dim)};
}

}  // namespace cpu_backend

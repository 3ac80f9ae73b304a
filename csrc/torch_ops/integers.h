// Integer tensors of the host's scheduling: the same one comes as int32 from its runner and as
// int64 from others, and is read and written here as it is.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>

#include "torch_ops/views.h"

namespace cpu_backend {

// A contiguous vector, or a matrix seen as one.
class Integers {
 public:
  Integers(const at::Tensor& tensor, const char* name)
      : data_(tensor.data_ptr()), size_(tensor.numel()), name_(name) {
    TORCH_CHECK_TYPE(tensor.scalar_type() == at::kInt || tensor.scalar_type() == at::kLong, name,
                     " must be int32 or int64.");
    TORCH_CHECK_VALUE(tensor.is_contiguous(), name, " must be contiguous.");
    is_long_ = tensor.scalar_type() == at::kLong;
  }
  int64_t size() const { return size_; }
  int64_t operator[](int64_t i) const {
    return is_long_ ? static_cast<const int64_t*>(data_)[i] : static_cast<const int32_t*>(data_)[i];
  }
  void set(int64_t i, int64_t value) const {
    if (is_long_) {
      static_cast<int64_t*>(data_)[i] = value;
    } else {
      static_cast<int32_t*>(data_)[i] = static_cast<int32_t>(value);
    }
  }
  void check_size(int64_t least) const {
    TORCH_CHECK_VALUE(size_ >= least, name_, " has ", size_, " entries, needed are ", least, ".");
  }

 private:
  void* data_;
  int64_t size_;
  const char* name_;
  bool is_long_;
};

// The pages of each request: rows of a matrix that may be part of a wider one.
class BlockTable {
 public:
  BlockTable(const at::Tensor& table, int64_t block_size)
      : data_(table.const_data_ptr<int32_t>()),
        stride_(table.dim() == 2 ? table.stride(0) : 0),
        pages_(table.size(-1)),
        block_size_(block_size) {
    TORCH_CHECK_VALUE(table.dim() == 2 && is_dense_in_last_dim(table),
                      "block_table must be [requests, pages] with dense rows.");
    TORCH_CHECK_VALUE(block_size > 0, "block_size must be positive.");
  }
  // The cache slot of a position; one behind the last page lies in that.
  int64_t slot(int64_t request, int64_t position) const {
    const int64_t page = std::min(position / block_size_, pages_ - 1);
    return data_[request * stride_ + page] * block_size_ + position % block_size_;
  }

 private:
  const int32_t* data_;
  int64_t stride_, pages_, block_size_;
};

}  // namespace cpu_backend

// A weight that the host gave to one of its packing ops, behind the tensor that it got for it.
//
// How a weight is packed depends on its first product, which the host's packing ops do not know: an
// expert's gate and up projection lie side by side, and codes need their scales.  So the tensor
// holds the weight as it came until it is multiplied for the first time.  Then it is packed, its
// memory goes back to the system, and from then on it reads as zeros.  What belongs to it hangs on
// its storage: parameters and views of the tensor are the same weight, copies are not.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <mutex>
#include <vector>

namespace cpu_backend {

// Packed linear layers (torch_ops/packed_linear.h), released with this.
class PackedMatrices {
 public:
  // The layer of matrix i, which lies in a weight [n, k] or [matrices, n, k].
  using Pack = std::function<int64_t(const at::Tensor& matrix, int64_t i)>;

  PackedMatrices() = default;
  PackedMatrices(const at::Tensor& weight, const Pack& pack);
  PackedMatrices(PackedMatrices&& other) noexcept : handles_(std::move(other.handles_)) {
    other.handles_.clear();
  }
  PackedMatrices& operator=(PackedMatrices&& other) noexcept {
    handles_.swap(other.handles_);
    return *this;
  }
  PackedMatrices(const PackedMatrices&) = delete;
  PackedMatrices& operator=(const PackedMatrices&) = delete;
  ~PackedMatrices();

  at::IntArrayRef handles() const { return handles_; }

 private:
  std::vector<int64_t> handles_;
};

class ConvertedWeight {
 public:
  // A copy of the weight that looks like it; its storage is larger, so that nobody who looks for a
  // tensor of the same size to copy it into finds one.
  static at::Tensor make(const at::Tensor& weight);
  // What make() hung on the tensor; an error if it is another one.
  static ConvertedWeight& of(const at::Tensor& tensor);

  // Packed at the first call; later ones must come with the same tensors, its scales for example.
  const PackedMatrices& packed(at::TensorList with, const PackedMatrices::Pack& pack);

 private:
  explicit ConvertedWeight(const at::Tensor& weight);
  ~ConvertedWeight();
  static void destroy(void* self);

  std::mutex mutex_;
  int64_t bytes_;
  void* memory_;
  at::DimVector sizes_;
  at::ScalarType dtype_;
  std::vector<at::Tensor> with_;
  PackedMatrices matrices_;
};

}  // namespace cpu_backend

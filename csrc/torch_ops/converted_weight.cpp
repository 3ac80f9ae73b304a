#include "torch_ops/converted_weight.h"

#include <cstdlib>
#include <cstring>

#include "core/machine.h"
#include "core/slice.h"
#include "system/system.h"
#include "torch_ops/ops.h"

namespace cpu_backend {

PackedMatrices::PackedMatrices(const at::Tensor& weight, const Pack& pack)
    : PackedMatrices() {  // so that what is packed is released if the next one cannot be
  TORCH_CHECK_VALUE(weight.dim() == 2 || weight.dim() == 3,
                    "a weight is [out, in] or [matrices, out, in], this one is ", weight.sizes(),
                    ".");
  const int64_t count = weight.dim() == 3 ? weight.size(0) : 1;
  handles_.reserve(count);
  for (int64_t i = 0; i < count; ++i)
    handles_.push_back(pack(weight.dim() == 3 ? weight[i] : weight, i));
}

PackedMatrices::~PackedMatrices() {
  for (const int64_t handle : handles_) release_linear(handle);
}

ConvertedWeight::ConvertedWeight(const at::Tensor& weight)
    : bytes_(round_up(static_cast<int64_t>(weight.nbytes()) + 1, kLargestPage)),
      memory_(std::aligned_alloc(kLargestPage, bytes_)),
      sizes_(weight.sizes()),
      dtype_(weight.scalar_type()) {
  TORCH_CHECK_WITH(OutOfMemoryError, memory_, "out of memory for ", bytes_, " bytes of weights.");
  const at::Tensor dense = weight.contiguous();
  std::memcpy(memory_, dense.const_data_ptr(), dense.nbytes());
}

ConvertedWeight::~ConvertedWeight() { std::free(memory_); }

void ConvertedWeight::destroy(void* self) { delete static_cast<ConvertedWeight*>(self); }

at::Tensor ConvertedWeight::make(const at::Tensor& weight) {
  auto* const self = new ConvertedWeight(weight);
  c10::Storage storage(c10::Storage::use_byte_size_t(), self->bytes_,
                       c10::DataPtr(self->memory_, self, destroy, at::kCPU), nullptr, false);
  at::Tensor tensor = at::empty({0}, weight.options());
  tensor.set_(std::move(storage), 0, weight.sizes());
  return tensor;
}

ConvertedWeight& ConvertedWeight::of(const at::Tensor& tensor) {
  auto* const self = tensor.storage().data_ptr().cast_context<ConvertedWeight>(destroy);
  TORCH_CHECK_VALUE(self && tensor.storage_offset() == 0,
                    "this weight was not packed, or was copied afterwards: give it to the packing "
                    "op of its product, and pass on the tensor that this returns.");
  return *self;
}

const PackedMatrices& ConvertedWeight::packed(at::TensorList with,
                                              const PackedMatrices::Pack& pack) {
  const std::lock_guard lock(mutex_);
  if (matrices_.handles().empty()) {
    matrices_ =
        PackedMatrices(at::from_blob(memory_, sizes_, at::TensorOptions().dtype(dtype_)), pack);
    with_ = with.vec();
    system::discard(memory_, bytes_);
    return matrices_;
  }
  TORCH_CHECK_VALUE(with.size() == with_.size(), "this weight was packed for another product.");
  for (size_t i = 0; i < with.size(); ++i)
    TORCH_CHECK_VALUE(
        with[i].is_same(with_[i]) || (with[i].sizes() == with_[i].sizes() &&
                                      with[i].scalar_type() == with_[i].scalar_type() &&
                                      (with[i].const_data_ptr() == with_[i].const_data_ptr() ||
                                       at::equal(with[i], with_[i]))),
        "this weight was packed with other scales at its first product: pack the "
        "weight anew to change them.");
  return matrices_;
}

}  // namespace cpu_backend

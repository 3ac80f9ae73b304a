// torch's own elementwise functions on CPUs, made such that an element's bits depend on its value
// and on nothing else.
//
// What does not fill its vectors, torch computes one by one and by other instructions.  The last
// bit of an element then depends on where it lies: on how many tokens share a step, and on the
// number of threads.  Here the frequent functions run on this project's kernels, whose last vector
// is masked; the others run on torch's, in whole vectors, the last one filled up.
//
// They stand in torch's table of CPU kernels in the place of torch's, so that it makes no
// difference how a model calls them.  Types other than float32, bfloat16 and float16 stay torch's.
#include <ATen/Parallel.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_cpu_dispatch.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/exp2_cpu_dispatch.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_cpu_dispatch.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_cpu_dispatch.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/pow_cpu_dispatch.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsqrt_cpu_dispatch.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_cpu_dispatch.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_cpu_dispatch.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/softplus_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

using at::Scalar;
using at::Tensor;
using c10::string_view;

// Both take tensors that are dense in the same order.

// By this project's kernel; leaves its loop in a recording.
void by_kernel(const Tensor& to, const Tensor& from, Activation kind) {
  const DType dtype = dtype_of(from, "input");
  const int64_t bytes = from.element_size();
  // An exponential costs about as much as 8 plain elements.
  parallel_slices(from.numel(), row_grain(8),
                  [=, x = static_cast<const char*>(from.const_data_ptr()),
                   y = static_cast<char*>(to.data_ptr())](Slice part) {
                    const int64_t size = part.end - part.begin;
                    const int64_t offset = part.begin * bytes;
                    kernels().activation(
                        dtype, {x + offset, size, y + offset, size, size, kind, false, false},
                        {0, 1});
                  });
}

// By torch's kernel f(y, x), in blocks of whole vectors that it does not share among threads.
template <class F>
void by_whole_vectors(const Tensor& to, const Tensor& from, const F& f) {
  constexpr int64_t kVector = 128;  // a multiple of what torch's loops take at once
  constexpr int64_t kBlock = 128 * kVector;
  const int64_t bytes = from.element_size();
  const int64_t total = from.numel();
  const int64_t whole = total / kVector * kVector;
  const auto options = from.options();
  const auto part = [&](const Tensor& tensor, int64_t begin, int64_t size) {
    return at::from_blob(static_cast<char*>(tensor.data_ptr()) + begin * bytes, {size}, options);
  };
  at::parallel_for(0, ceil_div(whole, kBlock), 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * kBlock; at < std::min(end * kBlock, whole); at += kBlock) {
      const int64_t size = std::min(kBlock, whole - at);
      f(part(to, at, size), part(from, at, size));
    }
  });
  if (whole == total) return;
  alignas(kCacheLine) char in[kVector * sizeof(float)] = {};
  alignas(kCacheLine) char out[kVector * sizeof(float)];
  const auto rest = static_cast<size_t>((total - whole) * bytes);
  std::memcpy(in, static_cast<const char*>(from.const_data_ptr()) + whole * bytes, rest);
  f(at::from_blob(out, {kVector}, options), at::from_blob(in, {kVector}, options));
  std::memcpy(static_cast<char*>(to.data_ptr()) + whole * bytes, out, rest);
}

bool is_real(const Scalar& number) { return !number.isComplex(); }
bool is_real(string_view /*name*/) { return true; }

// Whether y of x is computed here.  What torch's kernels compute leaves no loop in a recording.
template <class... Numbers>
bool is_ours(const Tensor& y, const Tensor& x, const Numbers&... numbers) {
  const at::ScalarType type = x.scalar_type();
  const bool ours = (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf) &&
                    y.scalar_type() == type && x.layout() == at::kStrided &&
                    (is_real(numbers) && ...);
  StepRecording* const recording = StepRecording::current();
  if (!ours && recording)
    recording->fail("an elementwise function of a type that this backend does not compute with");
  return ours;
}

struct Sigmoid {
  static constexpr auto call = &at::sigmoid;
  static constexpr auto torch = &at::cpu::sigmoid;
  static constexpr auto torch_out = &at::cpu::sigmoid_outf;
  static void ours(const Tensor& y, const Tensor& x) { by_kernel(y, x, Activation::kSigmoid); }
};

struct Silu {
  static constexpr auto call = &at::silu;
  static constexpr auto torch = &at::cpu::silu;
  static constexpr auto torch_out = &at::cpu::silu_outf;
  static void ours(const Tensor& y, const Tensor& x) { by_kernel(y, x, Activation::kSilu); }
};

struct Gelu {
  static constexpr auto call = &at::gelu;
  static constexpr auto torch = &at::cpu::gelu;
  static constexpr auto torch_out = &at::cpu::gelu_outf;
  static void ours(const Tensor& y, const Tensor& x, string_view approximate) {
    TORCH_CHECK(approximate == "none" || approximate == "tanh", "gelu has no approximation '",
                approximate, "': none and tanh are.");
    by_kernel(y, x, approximate == "tanh" ? Activation::kGeluTanh : Activation::kGelu);
  }
};

struct Mish {
  static constexpr auto call = &at::mish;
  static constexpr auto torch = &at::cpu::mish;
  static constexpr auto torch_out = &at::cpu::mish_outf;
  static void ours(const Tensor& y, const Tensor& x) {
    by_whole_vectors(y, x, [](Tensor to, const Tensor& from) { at::cpu::mish_out(to, from); });
  }
};

struct Exp2 {
  static constexpr auto call = &at::exp2;
  static constexpr auto torch = &at::cpu::exp2;
  static constexpr auto torch_out = &at::cpu::exp2_outf;
  static void ours(const Tensor& y, const Tensor& x) {
    by_whole_vectors(y, x, [](Tensor to, const Tensor& from) { at::cpu::exp2_out(to, from); });
  }
};

struct Rsqrt {
  static constexpr auto call = &at::rsqrt;
  static constexpr auto torch = &at::cpu::rsqrt;
  static constexpr auto torch_out = &at::cpu::rsqrt_outf;
  static void ours(const Tensor& y, const Tensor& x) {
    by_whole_vectors(y, x, [](Tensor to, const Tensor& from) { at::cpu::rsqrt_out(to, from); });
  }
};

struct Softplus {
  static constexpr auto call = &at::softplus;
  static constexpr auto torch = &at::cpu::softplus;
  static constexpr auto torch_out = &at::cpu::softplus_outf;
  static void ours(const Tensor& y, const Tensor& x, const Scalar& beta, const Scalar& threshold) {
    by_whole_vectors(y, x, [&](Tensor to, const Tensor& from) {
      at::cpu::softplus_out(to, from, beta, threshold);
    });
  }
};

struct Elu {
  static constexpr auto call = &at::elu;
  static constexpr auto torch = &at::cpu::elu;
  static constexpr auto torch_out = &at::cpu::elu_outf;
  static void ours(const Tensor& y, const Tensor& x, const Scalar& alpha, const Scalar& scale,
                   const Scalar& input_scale) {
    by_whole_vectors(y, x, [&](Tensor to, const Tensor& from) {
      at::cpu::elu_out(to, from, alpha, scale, input_scale);
    });
  }
};

struct Pow {
  static constexpr auto call = static_cast<Tensor (*)(const Tensor&, const Scalar&)>(&at::pow);
  static constexpr auto torch =
      static_cast<Tensor (*)(const Tensor&, const Scalar&)>(&at::cpu::pow);
  static constexpr auto torch_out =
      static_cast<Tensor& (*)(const Tensor&, const Scalar&, Tensor&)>(&at::cpu::pow_outf);
  static void ours(const Tensor& y, const Tensor& x, const Scalar& exponent) {
    by_whole_vectors(y, x,
                     [&](Tensor to, const Tensor& from) { at::cpu::pow_out(to, from, exponent); });
  }
};

// The forms that torch has of a function of a tensor and Numbers.
template <class Function, class Ours = decltype(&Function::ours)>
struct Forms;

template <class Function, class... Numbers>
struct Forms<Function, void (*)(const Tensor&, const Tensor&, Numbers...)> {
  static Tensor fresh(const Tensor& x, Numbers... numbers) {
    if (!is_ours(x, x, numbers...)) return Function::torch(x, numbers...);
    const Tensor dense = x.is_non_overlapping_and_dense() ? x : x.clone();
    const Tensor y = at::empty_like(dense);
    Function::ours(y, dense, numbers...);
    return y;
  }
  static Tensor& out(const Tensor& x, Numbers... numbers, Tensor& y) {
    if (!is_ours(y, x, numbers...)) return Function::torch_out(x, numbers..., y);
    at::native::resize_output(y, x.sizes());
    if (y.is_non_overlapping_and_dense() && y.strides() == x.strides()) {
      Function::ours(y, x, numbers...);
    } else {
      y.copy_(Function::call(x, numbers...));  // an op of its own, whose result a recording knows
    }
    return y;
  }
  static Tensor& in_place(Tensor& x, Numbers... numbers) { return out(x, numbers..., x); }
};

template <class Function>
void put(torch::Library& library, const std::string& fresh, const std::string& out,
         const std::string& in_place) {
  library.impl(fresh.c_str(), &Forms<Function>::fresh);
  library.impl(out.c_str(), &Forms<Function>::out);
  if (!in_place.empty()) library.impl(in_place.c_str(), &Forms<Function>::in_place);
}

// torch warns of every entry that it replaces.
class Silence : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

const bool kInstalled = [] {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__,
                                __LINE__);
  put<Sigmoid>(library, "sigmoid", "sigmoid.out", "sigmoid_");
  put<Silu>(library, "silu", "silu.out", "silu_");
  put<Gelu>(library, "gelu", "gelu.out", "gelu_");
  put<Mish>(library, "mish", "mish.out", "mish_");
  put<Exp2>(library, "exp2", "exp2.out", "exp2_");
  put<Rsqrt>(library, "rsqrt", "rsqrt.out", "rsqrt_");
  put<Softplus>(library, "softplus", "softplus.out", "");
  put<Elu>(library, "elu", "elu.out", "elu_");
  put<Pow>(library, "pow.Tensor_Scalar", "pow.Tensor_Scalar_out", "pow_.Scalar");
  return true;
}();

}  // namespace
}  // namespace cpu_backend

// The machine's limits (kernels/limits.h), measured with the threads that the ops run on.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {

int64_t read_bytes(const at::Tensor& data) {
  TORCH_CHECK_VALUE(data.is_contiguous() && data.nbytes() % 4 == 0,
                    "read_bytes needs a contiguous tensor of whole 32-bit words.");
  const auto* base = static_cast<const char*>(data.const_data_ptr());
  const int64_t words = static_cast<int64_t>(data.nbytes()) / 4;
  std::atomic<uint32_t> result{0};
  at::parallel_for(0, words, 1, [&](int64_t begin, int64_t end) {
    result ^= kernels().read_bytes(base + 4 * begin, 4 * (end - begin));
  });
  return result;
}

int64_t multiply_adds(int64_t steps) {
  constexpr float kFactor = 0.9375f;  // converges to 16: no infinities, no subnormal numbers
  std::atomic<int64_t> operations{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      float result;
      operations += kernels().multiply_adds(steps, kFactor, &result);
    }
  });
  return operations;
}

}  // namespace cpu_backend

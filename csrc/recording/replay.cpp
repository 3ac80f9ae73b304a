// Running a recording again: all threads walk through its nodes together.
#include <ATen/Parallel.h>
#include <omp.h>

#include "core/barrier.h"
#include "recording/step_recording.h"
#include "torch_ops/parallel.h"

namespace cpu_backend {

bool StepRecording::Node::is_serial(int64_t threads) const {
  return call || (rows && (threads == 1 || total <= grain));
}

void StepRecording::run_share(const Node& node, bool serial, int team, int me,
                              std::atomic<int64_t>& next) {
  if (serial) {
    if (me != 0) return;
    if (node.call) {
      node.call();
    } else {
      node.rows({0, node.total});
    }
  } else if (node.rows) {
    const int64_t parts = std::min<int64_t>(team, ceil_div(node.total, node.grain));
    if (me < parts) node.rows(split(node.total, parts, me));
  } else {
    const int64_t items = node.count();
    float* scratch = thread_scratch(node.scratch_floats);
    for (int64_t i = me; i < items;) {
      node.items(i, scratch);
      i = items > team ? next.fetch_add(1, std::memory_order_relaxed) : items;
    }
  }
}

at::Tensor StepRecording::replay(at::TensorList step_data) {
  TORCH_CHECK(error_.empty(), "this step cannot be replayed: ", error_, ".");
  TORCH_CHECK(step_data.size() == step_data_.size(), "the step has ", step_data.size(),
              " tensors, its recording ", step_data_.size(), ".");
  for (size_t i = 0; i < step_data.size(); ++i) {
    const at::Tensor& now = step_data[i];
    const at::Tensor& then = step_data_[i];
    TORCH_CHECK(now.scalar_type() == then.scalar_type() && now.dim() == then.dim() &&
                    (now.dim() == 0 || now.size(-1) <= 1 || now.stride(-1) == 1),
                "tensor ", i, " of the step is laid out differently than when it was recorded.");
    if (now.unsafeGetTensorImpl() != then.unsafeGetTensorImpl())
      then.unsafeGetTensorImpl()->shallow_copy_from(now.getIntrusivePtr());
  }
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
  const int threads = at::get_num_threads();
  SpinBarrier barrier(threads);
#pragma omp parallel num_threads(threads)
  {
    const int team = omp_get_num_threads();
    const int me = omp_get_thread_num();
    const auto meet = [&] {
      barrier.wait(team, me, [&] { next.store(team, std::memory_order_relaxed); });
    };
    bool after_serial = true;
    for (const Node& node : nodes_) {
      const bool serial = node.is_serial(team);
      // Serial nodes in a row are one thread's program order; everything else needs the others.
      if (!(serial && after_serial)) meet();
      after_serial = serial;
      // After an error the threads go on meeting, so that none waits for ever, and do nothing.
      if (failed.load(std::memory_order_relaxed)) continue;
      try {
        run_share(node, serial, team, me, next);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
  return output_;
}

}  // namespace cpu_backend

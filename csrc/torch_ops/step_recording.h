// A model's forward pass recorded once and replayed without Python and without the dispatcher:
// the CPU's counterpart of graph capture.
//
// While a recording is open on a thread, the forward pass runs as usual and leaves behind, in
// order, the parallel loops that this project's ops ran (closures over raw pointers) and every
// other op as a boxed call.  Replaying runs them all inside one parallel region, with a spin
// barrier where one loop may read what another wrote.
//
// What makes the pointers stay valid
//   memory     tensors made during the recording come from an arena that the recording owns; its
//              blocks are reused as tensors die, so the arena is as large as the widest point
//   inputs     token ids and positions live in buffers of the runner that never move (checked by
//              the caller before each replay)
//   step data  tensors that are new in every step (block table, attention plan) are named when the
//              recording opens; ops that read them keep the tensor, not its pointer, and bind()
//              points it at the new step's data
//   the rest   weights and KV cache: they belong to the model and outlive the recording
//
// A forward pass that cannot be repeated blindly (a read-back of a value, an output whose shape
// depends on data, an op of Python) makes the recording unusable; error() says why.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/custom_class.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/slice.h"

namespace cpu_backend {

class Arena;

class StepRecording : public torch::CustomClassHolder {
 public:
  explicit StepRecording(std::vector<at::Tensor> step_data);

  // The open recording of this thread, or null.
  static StepRecording* current();
  void open();
  void close(const at::Tensor& output);

  // Called by parallel.h and, for ops of others, by the dispatcher's fallback.
  void add_rows(int64_t total, int64_t grain, std::function<void(Slice)> run);
  void add_items(std::function<int64_t()> count, int64_t scratch_floats,
                 std::function<void(int64_t, float*)> run);
  void add_call(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  // For ops that are about to take a path which the recording cannot see.
  void fail(const std::string& reason);

  const std::string& error() const { return error_; }
  size_t size() const { return nodes_.size(); }
  Arena& arena() { return *arena_; }

  // Points the named step data at this step's tensors, then runs; returns the recorded output.
  at::Tensor replay(at::TensorList step_data);

 private:
  // One of: rows (static split), items (next free one), call (the first thread alone).
  struct Node {
    int64_t total = 0, grain = 1;
    std::function<void(Slice)> rows;
    std::function<int64_t()> count;
    int64_t scratch_floats = 0;
    std::function<void(int64_t, float*)> items;
    std::function<void()> call;

    bool is_serial(int64_t threads) const;
  };

  static void run_share(const Node& node, bool serial, int team, int me,
                        std::atomic<int64_t>& next);
  bool reads_step_data(const torch::jit::Stack& arguments) const;

  std::vector<at::Tensor> step_data_;
  std::vector<Node> nodes_;
  std::shared_ptr<Arena> arena_;
  at::Tensor output_;
  std::string error_;
};

}  // namespace cpu_backend

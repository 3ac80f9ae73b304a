// A model's forward pass recorded once and replayed without Python and without the dispatcher:
// the CPU's counterpart of graph capture.
//
// While a recording is open on a thread, the forward pass runs as usual and leaves behind, in
// order, the parallel loops that this project's ops ran (closures over raw pointers) and every
// other op as a boxed call.  Replaying runs them all inside one parallel region, with a spin
// barrier where one loop may read what another wrote.
//
// Every byte that a replay reads has one of these origins; a recording that reads another is
// refused (error() says why), and so is one that changes memory of the second kind, caches apart.
//   arena         tensors made during the recording, written by an earlier step of it.  What was
//                 written there by no op (a Python number, torch.tensor) is a constant: its bytes
//                 are kept outside and put back wherever they are read.
//   model memory  named when the recording is made: weights, buffers, KV cache, the runner's input
//                 buffers.  They outlive the recording and stay where they are.  Recurrent states,
//                 which a step changes and reads beforehand, are named once more: whoever runs a
//                 step twice puts them back in between.
//   step data     named when the recording is made: block table, attention plan and the like, other
//                 tensors in every step.  Only ops that look them up each time may read them.
// Ops that can be repeated are listed with what they read and write in repeatable.cpp; no other is.
// A loop's closure is flat and is searched for pointers into memory that its op was not given.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/custom_class.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/byte_ranges.h"
#include "core/slice.h"
#include "recording/arena.h"
#include "recording/repeatable.h"

namespace cpu_backend {

// A tensor that is another one in every step, for loops that run again: they keep this and read
// through it each time.  Its op lists the argument under `step_data`.
class StepTensor {
 public:
  StepTensor() = default;  // none
  explicit StepTensor(const at::Tensor& tensor) : impl_(tensor.unsafeGetTensorImpl()) {}
  template <class T>
  T* data() const {
    return static_cast<T*>(impl_->mutable_data());
  }
  int64_t stride(int64_t dim) const { return impl_->stride(dim); }
  int64_t size(int64_t dim) const { return impl_->size(dim); }
  explicit operator bool() const { return impl_ != nullptr; }

 private:
  // Held by the recording, or by the op's caller where there is none.
  c10::TensorImpl* impl_ = nullptr;
};

class StepRecording : public torch::CustomClassHolder {
 public:
  StepRecording(std::vector<at::Tensor> step_data, std::vector<at::Tensor> model_memory,
                std::vector<at::Tensor> states);

  // The open recording of this thread, or null.
  static StepRecording* current();
  void open();
  void close(const at::Tensor& output);

  // Called by parallel.h and, for ops, by the dispatcher's fallback.
  template <class F>
  void add_rows(int64_t total, int64_t grain, const F& run) {
    check_closure(run);
    Node& node = nodes_.emplace_back();
    node.total = total;
    node.grain = grain > 1 ? grain : 1;
    node.rows = run;
  }
  template <class Count, class F>
  void add_items(const Count& count, int64_t scratch_floats, const F& run) {
    check_closure(count);
    check_closure(run);
    Node& node = nodes_.emplace_back();
    node.count = count;
    node.scratch_floats = scratch_floats;
    node.items = run;
  }
  // What loops share beside their closures: lives as long as the recording.
  template <class T>
  void keep(const std::shared_ptr<T>& state) {
    check_pointers(byte_range(state.get(), sizeof(T)));
    kept_.push_back(state);
  }
  void add_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

  // The first reason why this cannot be replayed is kept.
  void fail(const std::string& reason);

  const std::string& error() const { return error_; }
  size_t size() const { return nodes_.size(); }

  // Overwrites all memory of the recording: a replay that needs what it has not written shows.
  void fill_with_garbage() { arena_->fill_with_garbage(); }

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
  // The op of this project that runs: what its loops may hold pointers to.
  struct Scope {
    std::string op;
    ByteRanges given;     // memory of its arguments
    int64_t first_block;  // and of what it has allocated
    uintptr_t stack_end;  // above its variables
  };
  struct Call;

  void add_own(const Call& call, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void add_foreign(const Call& call, torch::jit::Stack* stack);
  void note_reads(const Call& call);
  void note_read(const Call& call, const at::Tensor& tensor);
  void note_written(const Call& call, const at::Tensor& tensor, bool may_outlive);
  void put_back(ByteRange constant);
  // What lies in its padding is chance: an old address on the stack, say.
  template <class F>
  void check_closure(F closure) {
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&closure);
#endif
    check_pointers(byte_range(&closure, sizeof closure));
  }
  void check_pointers(ByteRange closure);
  bool in_arena(const at::Tensor& tensor) const;
  bool is_step_data(const at::Tensor& tensor) const;
  bool is_state(const at::Tensor& tensor) const;
  at::Tensor borrowed(const at::Tensor& tensor) const;
  c10::IValue borrowed(const c10::IValue& value) const;

  static void run_share(const Node& node, bool serial, int team, int me,
                        std::atomic<int64_t>& next);

  std::vector<at::Tensor> step_data_;
  std::vector<at::Tensor> model_memory_;
  ByteRanges model_bytes_;
  std::vector<Node> nodes_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<Scope> scopes_;
  std::shared_ptr<Arena> arena_;
  at::Tensor output_;
  std::string error_;
  std::vector<at::Tensor> states_;  // of the model's memory
};

}  // namespace cpu_backend

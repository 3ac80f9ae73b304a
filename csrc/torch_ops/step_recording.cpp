#include "torch_ops/step_recording.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <omp.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "core/barrier.h"
#include "torch_ops/parallel.h"

namespace cpu_backend {

// ---- memory of a recording
// -----------------------------------------------------------------------

// Best fit over blocks that tensors have given back; grows by chunks and never shrinks.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  at::DataPtr allocate(size_t bytes) {
    const size_t size = round_up(static_cast<int64_t>(std::max<size_t>(bytes, 1)), kAlignment);
    const std::lock_guard lock(mutex_);
    auto it = free_.lower_bound(size);
    if (it == free_.end()) it = free_.emplace(new_chunk(size));
    size_t available = it->first;
    char* const data = it->second;
    free_.erase(it);
    if (available - size >= kAlignment) {
      free_.emplace(available - size, data + size);
      available = size;
    }
    return {data, new Block{shared_from_this(), data, available}, &give_back, at::Device(at::kCPU)};
  }

 private:
  static constexpr int64_t kAlignment = 64;
  static constexpr size_t kChunkBytes = 1 << 20;

  struct Block {
    std::shared_ptr<Arena> arena;
    char* data;
    size_t bytes;
  };

  static void give_back(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    const std::lock_guard lock(block->arena->mutex_);
    block->arena->free_.emplace(block->bytes, block->data);
  }

  std::pair<size_t, char*> new_chunk(size_t bytes) {
    const size_t size = std::max(bytes, kChunkBytes);
    chunks_.push_back(base().allocate(size));
    return {size, static_cast<char*>(chunks_.back().get())};
  }

  // The allocator that was torch's before this library's stepped in front of it.
  static at::Allocator& base() { return *c10::GetDefaultCPUAllocator(); }

  std::mutex mutex_;
  std::multimap<size_t, char*> free_;
  std::vector<at::DataPtr> chunks_;
};

namespace {

thread_local StepRecording* open_recording = nullptr;

// torch's CPU allocator, except on a thread that records.
class RecordingAllocator : public at::Allocator {
 public:
  static void install() {
    static RecordingAllocator* const allocator = [] {
      auto* made = new RecordingAllocator(c10::GetCPUAllocator());
      c10::SetCPUAllocator(made, /*priority=*/100);
      return made;
    }();
    (void)allocator;
  }

  at::DataPtr allocate(size_t bytes) override {
    return open_recording ? open_recording->arena().allocate(bytes) : previous_->allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return previous_->raw_deleter(); }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

 private:
  explicit RecordingAllocator(at::Allocator* previous) : previous_(previous) {}
  at::Allocator* previous_;
};

// The dispatcher's hook for a mode on every op; nothing else of torch uses this key.
constexpr auto kRecordKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

void record_op(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard no_recursion(kRecordKey);
  if (open_recording) {
    open_recording->add_call(op, stack);
  } else {
    op.callBoxed(stack);
  }
}

template <class F>
void for_each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) f(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) f(*tensor);
  }
}

bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

bool mutates(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() && argument.alias_info()->isWrite();
  });
}

// Whether all outputs are views of inputs or memory yet to be written: nothing to repeat.
bool is_view_or_empty(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                      const torch::jit::Stack& outputs) {
  const std::string& name = op.schema().name();
  if (name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0) return true;
  bool views = !outputs.empty() && !mutates(op);
  for (const c10::IValue& output : outputs) {
    views = views && (output.isTensor() || output.isTensorList());
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      bool aliases = false;
      for (const c10::IValue& argument : arguments)
        for_each_tensor(argument, [&](const at::Tensor& other) {
          aliases = aliases || shares_storage(tensor, other);
        });
      views = views && aliases;
    });
  }
  return views;
}

// Why a call of this op cannot be repeated with other data, or nothing.
std::string refusal(const c10::OperatorHandle& op) {
  for (const at::Tag tag : op.getTags()) {
    if (tag == at::Tag::data_dependent_output || tag == at::Tag::dynamic_output_shape)
      return "depends on the data it reads";
    if (tag == at::Tag::nondeterministic_seeded) return "draws random numbers";
  }
  const std::string& name = op.schema().name();
  for (const char* known : {"aten::", "_C::", "cpu_backend::", "prims::"})
    if (name.rfind(known, 0) == 0) return "";
  return "is not an op that this backend knows";
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_op>());
}

// ---- recording
// -----------------------------------------------------------------------------------

StepRecording::StepRecording(std::vector<at::Tensor> step_data)
    : step_data_(std::move(step_data)), arena_(std::make_shared<Arena>()) {
  RecordingAllocator::install();
}

StepRecording* StepRecording::current() { return open_recording; }

void StepRecording::open() {
  TORCH_CHECK(!open_recording, "a recording is already open on this thread.");
  open_recording = this;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

void StepRecording::close(const at::Tensor& output) {
  c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
  open_recording = nullptr;
  output_ = output;
}

void StepRecording::fail(const std::string& reason) {
  if (error_.empty()) error_ = reason;
}

void StepRecording::add_rows(int64_t total, int64_t grain, std::function<void(Slice)> run) {
  Node& node = nodes_.emplace_back();
  node.total = total;
  node.grain = std::max<int64_t>(1, grain);
  node.rows = std::move(run);
}

void StepRecording::add_items(std::function<int64_t()> count, int64_t scratch_floats,
                              std::function<void(int64_t, float*)> run) {
  Node& node = nodes_.emplace_back();
  node.count = std::move(count);
  node.scratch_floats = scratch_floats;
  node.items = std::move(run);
}

bool StepRecording::reads_step_data(const torch::jit::Stack& arguments) const {
  bool reads = false;
  for (const c10::IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      for (const at::Tensor& data : step_data_) reads = reads || shares_storage(tensor, data);
    });
  return reads;
}

void StepRecording::add_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  torch::jit::Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
  const size_t nodes = nodes_.size();
  op.callBoxed(stack);
  if (nodes_.size() > nodes) return;  // an op of this library: it has left its loops
  const torch::jit::Stack outputs(stack->begin() + static_cast<std::ptrdiff_t>(first),
                                  stack->end());
  const std::string& name = op.schema().name();
  if (reads_step_data(arguments)) fail(name + " reads data that is new in every step");
  if (is_view_or_empty(op, arguments, outputs)) return;
  if (const std::string why = refusal(op); !why.empty()) fail(name + " " + why);
  const bool in_place = mutates(op);
  for (const c10::IValue& output : outputs)
    if (!output.isTensor() && !in_place) fail(name + " gives something else than tensors");
  nodes_.emplace_back().call = [op, arguments, outputs, in_place] {
    torch::jit::Stack copy = arguments;
    op.callBoxed(&copy);
    if (in_place) return;
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i].toTensor().copy_(copy[i].toTensor());
  };
}

// ---- replay
// --------------------------------------------------------------------------------------

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

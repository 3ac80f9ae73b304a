#include "recording/step_recording.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "system/system.h"

namespace cpu_backend {
namespace {

thread_local StepRecording* open_recording = nullptr;

// This thread's recording is out of sight for a while, also when an op throws.
class NoRecording {
 public:
  NoRecording() : hidden_(std::exchange(open_recording, nullptr)) {}
  ~NoRecording() { open_recording = hidden_; }
  NoRecording(const NoRecording&) = delete;
  NoRecording& operator=(const NoRecording&) = delete;

 private:
  StepRecording* hidden_;
};

// The dispatcher's hook for a mode on every op; nothing else of torch uses this key.
constexpr auto kRecordKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr c10::DispatchKeySet kBelowRecording(c10::DispatchKeySet::FULL_AFTER, kRecordKey);

void record_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (open_recording) {
    open_recording->add_op(op, keys, stack);
  } else {
    op.redispatchBoxed(keys & kBelowRecording, stack);
  }
}

template <class F>
void for_each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) f(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) f(*tensor);
  }
}

// What a replay can hand over again: numbers, names and tensors, but no objects of others.
bool is_plain(const c10::IValue& value) {
  return value.isNone() || value.isTensor() || value.isTensorList() ||
         value.isOptionalTensorList() || value.isInt() || value.isDouble() || value.isBool() ||
         value.isString() || value.isDevice() || value.isIntList() || value.isDoubleList() ||
         value.isBoolList() || value.isComplexDouble();
}

bool shares_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.has_storage() && b.has_storage() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

ByteRange storage_range(const at::Tensor& tensor) {
  return byte_range(tensor.storage().data(), tensor.storage().nbytes());
}

// f(range) for the runs of bytes that a tensor's elements take up.
template <class F>
void for_each_run(const at::Tensor& tensor, const F& f) {
  if (tensor.numel() == 0) return;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride and size, widest first
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d) != 0)
      dims.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(dims.rbegin(), dims.rend());
  int64_t run = 1;
  for (; !dims.empty() && dims.back().first == run; dims.pop_back()) run *= dims.back().second;
  const auto bytes = static_cast<int64_t>(tensor.itemsize());
  const auto* const data = static_cast<const char*>(tensor.const_data_ptr());
  int64_t runs = 1;
  for (const auto& [stride, size] : dims) runs *= size;
  for (int64_t r = 0; r < runs; ++r) {
    int64_t offset = 0;
    int64_t rest = r;
    for (auto dim = dims.rbegin(); dim != dims.rend(); ++dim) {
      offset += rest % dim->second * dim->first;
      rest /= dim->second;
    }
    f(byte_range(data + offset * bytes, run * bytes));
  }
}

// Memory yet to be written, or a change of what torch knows of a tensor.
bool does_nothing_to_data(const std::string& name) {
  return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0 ||
         name == "aten::detach_";
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_op>());
}

// An op and what it was called with.
struct StepRecording::Call {
  const c10::OperatorHandle& op;
  const std::string& name;
  torch::jit::Stack arguments;
  const Repeatable* rule;

  bool writes(size_t i) const {
    const auto* alias = op.schema().arguments()[i].alias_info();
    return alias && alias->isWrite();
  }
  bool mutates() const {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (writes(i)) return true;
    return false;
  }
  bool named(std::string_view Repeatable::* list, size_t i) const {
    return rule && names(rule->*list, op.schema().arguments()[i].name());
  }
  bool takes_tensors() const {
    bool found = false;
    for (const c10::IValue& argument : arguments)
      for_each_tensor(argument, [&](const at::Tensor&) { found = true; });
    return found;
  }
  bool is_argument(const at::Tensor& tensor) const {
    bool found = false;
    for (const c10::IValue& argument : arguments)
      for_each_tensor(argument, [&](const at::Tensor& other) {
        found = found || shares_storage(tensor, other);
      });
    return found;
  }
};

StepRecording::StepRecording(std::vector<at::Tensor> step_data,
                             std::vector<at::Tensor> model_memory, std::vector<at::Tensor> states)
    : step_data_(std::move(step_data)),
      model_memory_(std::move(model_memory)),
      arena_(Arena::make()),
      states_(std::move(states)) {
  for (const at::Tensor& tensor : model_memory_)
    if (tensor.defined() && tensor.has_storage() && tensor.is_cpu())
      model_bytes_.add(storage_range(tensor));
}

StepRecording* StepRecording::current() { return open_recording; }

void StepRecording::open() {
  TORCH_CHECK(!open_recording, "a recording is already open on this thread.");
  open_recording = this;
  Arena::use_on_this_thread(arena_.get());
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

void StepRecording::close(const at::Tensor& output) {
  c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
  Arena::use_on_this_thread(nullptr);
  open_recording = nullptr;
  scopes_.clear();
  output_ = output;
  // Later replays would change it behind the back of whoever keeps it.
  if (arena_->blocks_in_use() > (in_arena(output) ? 1u : 0u))
    fail("a tensor that the step made is kept beyond it");
}

void StepRecording::fail(const std::string& reason) {
  if (error_.empty()) error_ = reason;
}

bool StepRecording::in_arena(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.has_storage() && arena_->owns(tensor.storage().data());
}

bool StepRecording::is_step_data(const at::Tensor& tensor) const {
  return std::any_of(step_data_.begin(), step_data_.end(),
                     [&](const at::Tensor& data) { return shares_storage(tensor, data); });
}

// The same elements, in whatever order of dimensions.
bool StepRecording::is_state(const at::Tensor& tensor) const {
  return std::any_of(states_.begin(), states_.end(), [&](const at::Tensor& state) {
    return shares_storage(tensor, state) && tensor.const_data_ptr() == state.const_data_ptr() &&
           tensor.numel() == state.numel();
  });
}

// ---- one op
// --------------------------------------------------------------------------------------

void StepRecording::add_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  if (is_made_of_ops(name)) return op.redispatchBoxed(keys & kBelowRecording, stack);
  const auto first = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const Call call{op, name, torch::jit::Stack(first, stack->end()), repeatable(name)};
  if (leaves_loops(name)) {
    add_own(call, keys, stack);
  } else {
    add_foreign(call, stack);
  }
}

// Its loops come by way of parallel.h; what it asks of torch is recorded like any other op.
void StepRecording::add_own(const Call& call, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (const std::string why = why_not_repeatable(call.op, call.arguments); !why.empty())
    fail(call.name + " " + why);
  note_reads(call);
  Scope& scope = scopes_.emplace_back(
      Scope{call.name, {}, arena_->next_number(), reinterpret_cast<uintptr_t>(&call)});
  for (const c10::IValue& argument : call.arguments)
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      if (in_arena(tensor)) scope.given.add(storage_range(tensor));
    });
  const size_t below = stack->size() - call.arguments.size();
  call.op.redispatchBoxed(keys & kBelowRecording, stack);
  scopes_.pop_back();
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (call.writes(i))
      for_each_tensor(call.arguments[i], [&](const at::Tensor& tensor) {
        note_written(call, tensor,
                     call.named(&Repeatable::outlives, i) ||
                         (call.named(&Repeatable::states, i) && is_state(tensor)));
      });
  for (size_t i = below; i < stack->size(); ++i)
    for_each_tensor((*stack)[i],
                    [&](const at::Tensor& tensor) { note_written(call, tensor, false); });
}

// An op of torch becomes a call, unless all it gives are views or memory yet to be written.
void StepRecording::add_foreign(const Call& call, torch::jit::Stack* stack) {
  const bool touches_data = !does_nothing_to_data(call.name);
  const bool in_place = touches_data && call.mutates();
  if (in_place) note_reads(call);  // before they change
  const size_t below = stack->size() - call.arguments.size();
  {
    // Whatever it runs inside, it is called again as a whole.
    const c10::impl::ExcludeDispatchKeyGuard not_within(kRecordKey);
    const NoRecording no_loops;
    call.op.callBoxed(stack);
  }
  if (!touches_data) return;
  const torch::jit::Stack outputs(stack->begin() + static_cast<std::ptrdiff_t>(below),
                                  stack->end());
  bool views = false;
  bool fresh = false;
  bool others = false;
  for (const c10::IValue& output : outputs) {
    others = others || (!output.isTensor() && !output.isTensorList());
    for_each_tensor(output, [&](const at::Tensor& tensor) {
      (call.is_argument(tensor) ? views : fresh) = true;
    });
  }
  if (!in_place) {
    const bool nothing = !views && !fresh && !call.takes_tensors();  // asks for a type, say
    if (nothing || (views && !fresh && !others)) return;
    note_reads(call);
  }
  if (const std::string why = why_not_repeatable(call.op, call.arguments); !why.empty())
    fail(call.name + " " + why);
  if (others) fail(call.name + " gives something else than tensors");
  if (views && fresh) fail(call.name + " gives views and new tensors at once");
  if (!std::all_of(call.arguments.begin(), call.arguments.end(), is_plain))
    fail(call.name + " takes something else than tensors and numbers");
  torch::jit::Stack arguments;
  for (const c10::IValue& argument : call.arguments) arguments.push_back(borrowed(argument));
  std::vector<at::Tensor> results;
  for (const c10::IValue& output : outputs) {
    if (in_place || !output.isTensor()) continue;
    results.push_back(borrowed(output.toTensor()));
    note_written(call, output.toTensor(), false);
  }
  for (size_t i = 0; i < call.arguments.size(); ++i)
    if (call.writes(i))
      for_each_tensor(call.arguments[i],
                      [&](const at::Tensor& tensor) { note_written(call, tensor, false); });
  if (fresh && results.size() != outputs.size()) fail(call.name + " gives lists of tensors");
  nodes_.emplace_back().call = [op = call.op, arguments, results] {
    torch::jit::Stack stack = arguments;
    op.callBoxed(&stack);
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].defined()) results[i].copy_(stack[i].toTensor());
  };
}

// ---- where bytes come from
// -----------------------------------------------------------------------

void StepRecording::note_reads(const Call& call) {
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (call.writes(i) && call.named(&Repeatable::overwrites, i)) continue;
    const bool looked_up = call.named(&Repeatable::step_data, i);
    for_each_tensor(call.arguments[i], [&](const at::Tensor& tensor) {
      if (!looked_up) return note_read(call, tensor);
      const bool known = std::any_of(step_data_.begin(), step_data_.end(),
                                     [&](const at::Tensor& data) { return tensor.is_same(data); });
      if (!known)
        fail(call.name + " reads its " + call.op.schema().arguments()[i].name() +
             " from a tensor that was not named as new in every step");
    });
  }
}

void StepRecording::note_read(const Call& call, const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !tensor.has_storage()) return;
  if (is_step_data(tensor)) {
    fail(call.name + " reads data that is new in every step");
  } else if (in_arena(tensor)) {
    for_each_run(tensor, [&](ByteRange run) {
      for (const ByteRange& part : arena_->written.missing(run)) put_back(part);
    });
  } else if (!model_bytes_.contains(storage_range(tensor))) {
    std::ostringstream what;
    what << tensor.sizes() << " of " << tensor.scalar_type();
    fail(call.name + " reads a tensor " + what.str() +
         " that is neither the model's nor made in the step");
  }
}

void StepRecording::note_written(const Call& call, const at::Tensor& tensor, bool may_outlive) {
  if (tensor.numel() == 0 || !tensor.has_storage()) return;
  if (in_arena(tensor)) {
    for_each_run(tensor, [&](ByteRange run) { arena_->written.add(run); });
  } else if (!may_outlive) {
    fail(call.name + " changes memory that outlives the step");
  }
}

// No op has written these bytes since they were allocated: a number of Python's, a tensor made
// from a list.  They would not be written again.  An op of this project that has allocated them may
// have written them by loops, so nothing that it calls may read them.
void StepRecording::put_back(ByteRange constant) {
  auto* const place = reinterpret_cast<char*>(constant.begin);
  const auto block = arena_->block_of(place);
  if (!scopes_.empty() && block && block->number >= scopes_.front().first_block)
    fail(scopes_.front().op + " reads memory of its own by another op");
  nodes_.emplace_back().call = [place, bytes = std::vector<char>(place, place + constant.size())] {
    std::memcpy(place, bytes.data(), bytes.size());
  };
  arena_->written.add(constant);
}

// A word of a closure that is the address of memory which lives only during the step must be
// of memory that the op was given or has allocated.  Variables are looked for where those of the op
// lie, from here up (stacks grow downwards), and not in all of the stack: the padding of a closure
// may hold half of an old address, which with a small number beside it is one in a stack that
// crosses a multiple of 4 GiB.  Of 500 processes one has such a stack, of large stacks all.
void StepRecording::check_pointers(ByteRange closure) {
  thread_local const ByteRange whole = system::stack_of_this_thread();
  if (whole.size() == 0) fail("this system does not tell where variables lie");
  const ByteRange stack{reinterpret_cast<uintptr_t>(&closure),
                        scopes_.empty() ? whole.end : scopes_.back().stack_end};
  const uintptr_t word = sizeof(uintptr_t);
  for (uintptr_t at = round_up(static_cast<int64_t>(closure.begin), word); at + word <= closure.end;
       at += word) {
    uintptr_t value;
    std::memcpy(&value, reinterpret_cast<const void*>(at), word);
    const auto* const address = reinterpret_cast<const void*>(value);
    const std::string op = scopes_.empty() ? "a loop" : scopes_.back().op;
    if (stack.contains(value)) {
      fail(op + " keeps a pointer to a variable of its own");
    } else if (arena_->owns(address)) {
      const auto block = arena_->block_of(address);
      const bool allocated =
          block && !scopes_.empty() && block->number >= scopes_.back().first_block;
      if (!allocated && (scopes_.empty() || !scopes_.back().given.contains({value, value + 1})))
        fail(op + " keeps a pointer to memory that it was not given");
    } else if (Arena::any_owns(address)) {
      fail(op + " keeps a pointer to memory of another recording");
    }
  }
}

// The same memory, without keeping it from being lent again: closures do not keep it either.
at::Tensor StepRecording::borrowed(const at::Tensor& tensor) const {
  if (!in_arena(tensor)) return tensor;
  const at::Storage& storage = tensor.storage();
  at::Storage lent(at::Storage::use_byte_size_t{}, storage.nbytes(),
                   at::DataPtr(storage.mutable_data(), at::Device(at::kCPU)));
  at::Tensor copy =
      at::detail::make_tensor<c10::TensorImpl>(std::move(lent), tensor.key_set(), tensor.dtype());
  c10::TensorImpl* const impl = copy.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return copy;
}

c10::IValue StepRecording::borrowed(const c10::IValue& value) const {
  if (value.isTensor()) return borrowed(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(borrowed(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(borrowed(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

}  // namespace cpu_backend

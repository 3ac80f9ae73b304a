// Which ops a recording may hold, and what they do to memory beyond what their schemas say.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>

namespace cpu_backend {

// Names of arguments, separated by blanks.
struct Repeatable {
  std::string_view name;
  // Mutable arguments that are written whole and not read.  The other mutable ones are both.
  std::string_view overwrites = "";
  // Arguments that are other tensors in every step, looked up each time the op's loops run.
  std::string_view step_data = "";
  // Mutable arguments that outlive the step; running twice must leave what running once does.
  std::string_view outlives = "";
  // Mutable arguments that outlive the step and are read before they change: recurrent states, of
  // which the recording has to have been told.
  std::string_view states = "";
};

// The entry of an op, or null: then a step with it is not recorded.
const Repeatable* repeatable(const std::string& name);

// Why this call cannot be repeated with other data, or nothing.
std::string why_not_repeatable(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

bool names(std::string_view list, const std::string& argument);

// Whether the op is this project's own and leaves its loops rather than being called again.
bool leaves_loops(const std::string& name);

// Whether the op is a Python function of the host's, which does all it does by calling other ops:
// they are recorded in its place.
bool is_made_of_ops(const std::string& name);

}  // namespace cpu_backend

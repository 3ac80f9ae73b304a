// The tensors that say where a step's sequences and their states are.
#pragma once

#include <optional>

#include "recording/step_recording.h"
#include "torch_ops/views.h"

namespace cpu_backend {

constexpr int64_t kNullSlot = -1;  // of this project's ops; the host's say theirs

inline void check_index(const at::Tensor& tensor, at::ScalarType type, const char* name) {
  TORCH_CHECK_TYPE(tensor.scalar_type() == type, name, " has dtype ", tensor.scalar_type(),
                   ", expected ", type, ".");
}

// Looked up each time a loop runs: `starts` [sequences + 1] int32 and dense, `slots` int32, one per
// sequence with any stride, `continued` bool [sequences].  With `accepted` int32 [sequences] a
// sequence has a dense row of slots; see Sequences.
class StepSequences {
 public:
  StepSequences(const std::optional<at::Tensor>& starts, int64_t count, int64_t length,
                const std::optional<at::Tensor>& slots, int64_t null_slot,
                const std::optional<at::Tensor>& continued, bool all_continued,
                const std::optional<at::Tensor>& accepted = std::nullopt)
      : count_(count), length_(length), null_slot_(null_slot), all_continued_(all_continued) {
    const int64_t sequences = starts ? starts->numel() - 1 : count;
    if (starts) {
      typed_data<int32_t>(*starts, "query_start_loc");
      TORCH_CHECK_VALUE(sequences >= 0, "query_start_loc is empty.");
      starts_ = StepTensor(*starts);
    }
    if (slots) {
      check_index(*slots, at::kInt, "The indices of states");
      TORCH_CHECK_VALUE(slots->dim() >= 1 && slots->size(0) >= sequences, sequences,
                        " sequences have ", slots->numel(), " indices of states.");
      slots_ = StepTensor(*slots);
    }
    if (continued) {
      check_index(*continued, at::kBool, "has_initial_state");
      TORCH_CHECK_VALUE(continued->is_contiguous() && continued->numel() >= sequences,
                        "has_initial_state must be contiguous and have ", sequences, " entries.");
      continued_ = StepTensor(*continued);
    }
    if (accepted) {
      check_index(*accepted, at::kInt, "The numbers of accepted tokens");
      TORCH_CHECK_VALUE(slots && slots->dim() == 2 && is_dense_in_last_dim(*slots) &&
                            accepted->is_contiguous() && accepted->numel() >= sequences,
                        sequences,
                        " sequences need a row of slots and a number of accepted tokens "
                        "each.");
      accepted_ = StepTensor(*accepted);
    }
  }

  // How many tokens of a sequence may be taken back.
  int64_t drafts() const { return accepted_ ? slots_.size(1) - 1 : 0; }

  Sequences get() const {
    Sequences s{};
    s.count = starts_ ? starts_.size(0) - 1 : count_;
    s.starts = starts_ ? starts_.data<int32_t>() : nullptr;
    s.length = length_;
    s.slots = slots_ ? slots_.data<int32_t>() : nullptr;
    s.slot_stride = slots_ ? slots_.stride(0) : 0;
    s.null_slot = null_slot_;
    s.continued = continued_ ? continued_.data<uint8_t>() : nullptr;
    s.all_continued = all_continued_ != 0;
    s.accepted = accepted_ ? accepted_.data<int32_t>() : nullptr;
    return s;
  }

 private:
  // Neither optionals nor gaps: a recording looks for pointers in what they leave undefined.
  int64_t count_, length_, null_slot_, all_continued_;
  StepTensor starts_, slots_, continued_, accepted_;
};

}  // namespace cpu_backend

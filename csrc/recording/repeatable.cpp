#include "recording/repeatable.h"

#include <algorithm>
#include <iterator>

namespace cpu_backend {
namespace {

constexpr Repeatable kOwn[] = {
    {"_C::silu_and_mul", "out"},
    {"_C::mul_and_silu", "out"},
    {"_C::gelu_and_mul", "out"},
    {"_C::gelu_tanh_and_mul", "out"},
    {"_C::gelu_new", "out"},
    {"_C::gelu_fast", "out"},
    {"_C::gelu_tanh", "out"},
    {"_C::gelu_quick", "out"},
    {"_C::relu_squared", "out"},
    {"_C::rms_norm", "out"},
    {"_C::fused_add_rms_norm"},
    {"_C::rotary_embedding"},
    {"_C::onednn_mm", "c"},
    {"_C::onednn_scaled_mm", "c"},
    {"_C::static_scaled_int8_quant", "out"},
    {"_C::dynamic_scaled_int8_quant", "out scale azp"},
    {"_C::static_scaled_fp8_quant", "result"},
    {"_C::cpu_attn_reshape_and_cache", "key_cache value_cache", "slot_mapping",
     "key_cache value_cache"},
    {"_C::cpu_attention_with_kv_cache", "output",
     "query_start_loc seq_lens block_table "
     "scheduler_metadata"},
    {"_C::shm_allreduce"},
    {"_C::shm_all_gather", "output"},
    {"cpu_backend::gemma_rms_norm", "out"},
    {"cpu_backend::fused_add_gemma_rms_norm"},
    {"cpu_backend::gated_rms_norm", "out"},
    {"cpu_backend::layer_norm", "out"},
    {"cpu_backend::lora_shrink", "y"},
    {"cpu_backend::lora_expand"},
    {"cpu_backend::linear"},
    {"cpu_backend::linear_add"},
    {"cpu_backend::linear_act", "out"},
    {"cpu_backend::linear_act_and_mul", "out"},
    {"cpu_backend::linear_heads", "out"},
    {"cpu_backend::packed_rows"},
    {"cpu_backend::experts", "out"},
    {"cpu_backend::causal_conv", "", "query_start_loc slots resumes accepted", "", "states"},
    {"cpu_backend::state_scan", "out", "query_start_loc slots has_initial_state accepted", "",
     "states"},
    {"cpu_backend::gated_delta_rule", "out", "slots resumes query_start_loc accepted", "",
     "states"},
    {"cpu_backend::cache_keys", "cache", "slot_mapping", "cache"},
    {"cpu_backend::cache_rows", "cache", "slot_mapping", "cache"},
    {"cpu_backend::choose_tokens", "scores chosen", "query_start_loc seq_lens block_table",
     "scores chosen"},
    {"cpu_backend::sparse_attention", "output", "query_start_loc seq_lens block_table"},
    // torch's, on this project's kernel (torch_ops/elementwise.cpp)
    {"aten::gelu", "out"},
    {"aten::gelu_"},
    {"aten::sigmoid", "out"},
    {"aten::sigmoid_"},
    {"aten::silu", "out"},
    {"aten::silu_"},
};

// Functions of the tensors and numbers that they are given: no memory of their own, no random
// numbers, no output whose shape depends on data.  Views need no entry.
constexpr std::string_view kTorch[] = {
    "__and_",  // & and |; their names end like those of ops in place, and are cut like them
    "__or_",
    "_log_softmax",
    "_softmax",
    "_to_copy",
    "abs",
    "add",
    "addcmul",
    "addmm",
    "all",
    "amax",
    "amin",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "atan2",
    "baddbmm",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bmm",
    "cat",
    "ceil",
    "celu",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clone",
    "concat",
    "concatenate",
    "constant_pad_nd",
    "contiguous",
    "conv1d",
    "conv2d",
    "cos",
    "cumprod",
    "cumsum",
    "div",
    "dot",
    "einsum",
    "elu",
    "embedding",
    "eq",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "flip",
    "floor",
    "floor_divide",
    "fmod",
    "full",
    "full_like",
    "gather",
    "ge",
    "group_norm",
    "gt",
    "hardswish",
    "index",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_select",
    "isinf",
    "isnan",
    "layer_norm",
    "le",
    "leaky_relu",
    "lerp",
    "linalg_vector_norm",
    "linear",
    "linspace",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "lt",
    "masked_fill",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mish",
    "mm",
    "mul",
    "mv",
    "native_group_norm",
    "native_layer_norm",
    "ne",
    "neg",
    "new_full",
    "new_ones",
    "new_zeros",
    "norm",
    "ones",
    "ones_like",
    "outer",
    "pad",
    "pow",
    "prod",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "rms_norm",
    "roll",
    "round",
    "rsqrt",
    "rsub",
    "scalar_tensor",
    "scatter",
    "scatter_add",
    "selu",
    "sign",
    "sin",
    "softmax",
    "softplus",
    "sort",
    "sqrt",
    "square",
    "stack",
    "std",
    "sub",
    "sum",
    "tanh",
    "tile",
    "to",
    "topk",
    "tril",
    "triu",
    "true_divide",
    "type_as",
    "var",
    "vector_norm",
    "where",
    "xlogy",
    "zeros",
    "zeros_like",
};

// In place and without reading what was there.
constexpr Repeatable kOverwriting[] = {
    {"aten::copy_", "self"},
    {"aten::fill_", "self"},
    {"aten::zero_", "self"},
};

// Indexing by a mask has a shape that depends on the mask, indexing by numbers has not.
bool picks_by_number(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  if (op.schema().name() != "aten::index") return false;
  for (const std::optional<at::Tensor>& index : arguments[1].toOptionalTensorVector())
    if (index && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte))
      return false;
  return true;
}

template <class Table>
const Repeatable* find(const Table& table, const std::string& name) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const Repeatable& entry) { return entry.name == name; });
  return found == std::end(table) ? nullptr : &*found;
}

}  // namespace

const Repeatable* repeatable(const std::string& name) {
  static constexpr Repeatable kFunction{"", "out"};  // the "out" of torch's own forms with one
  if (const Repeatable* entry = find(kOwn, name)) return entry;
  if (const Repeatable* entry = find(kOverwriting, name)) return entry;
  constexpr std::string_view kAten = "aten::";
  if (name.rfind(kAten, 0) != 0) return nullptr;
  std::string_view base = std::string_view(name).substr(kAten.size());
  if (base.size() > 1 && base.back() == '_') base.remove_suffix(1);  // in place
  const auto* const found = std::find(std::begin(kTorch), std::end(kTorch), base);
  return found == std::end(kTorch) ? nullptr : &kFunction;
}

std::string why_not_repeatable(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  for (const at::Tag tag : op.getTags()) {
    if (tag == at::Tag::nondeterministic_seeded) return "draws random numbers";
    if (tag == at::Tag::data_dependent_output ||
        (tag == at::Tag::dynamic_output_shape && !picks_by_number(op, arguments)))
      return "depends on the data it reads";
  }
  if (repeatable(op.schema().name())) return "";
  return "is not an op that this backend knows to be repeatable";
}

bool names(std::string_view list, const std::string& argument) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(' ', begin), list.size());
    if (list.substr(begin, end - begin) == argument) return true;
    begin = end + 1;
  }
  return false;
}

bool leaves_loops(const std::string& name) {
  return name.rfind("_C::", 0) == 0 || name.rfind("cpu_backend::", 0) == 0 || find(kOwn, name);
}

bool is_made_of_ops(const std::string& name) {
  return names(
      "vllm::transformers_moe_forward vllm::mamba_mixer vllm::mamba_mixer2 vllm::short_conv", name);
}

}  // namespace cpu_backend

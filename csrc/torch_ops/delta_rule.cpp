// Gated delta nets: this project's op for a step's requests of any lengths, and the host's ops.
#include <algorithm>
#include <cmath>

#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/sequences.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

constexpr double kNormEpsilon = 1e-6;  // the models'

struct Gates {           // fp32
  at::Tensor log_decay;  // [tokens, heads * decays]
  at::Tensor beta;       // [tokens, heads]
  int64_t decays;        // of a head: 1, or one for each channel of its keys
};

// a [tokens, heads] or, with decays for each channel of the keys, [tokens, heads, key_dim]; dt_bias
// has as many elements as a row of a.
Gates gates_of(const at::Tensor& a_log, const at::Tensor& a, const at::Tensor& b,
               const at::Tensor& dt_bias, double beta_range = 1.0) {
  const DType dtype = dtype_of(a, "a");
  check_same_dtype(b, "b", a, "a");
  const int64_t decays = a.dim() == 3 ? a.size(2) : 1;
  const at::Tensor a_rows = with_rows(a.dim() == 3 ? a.flatten(1) : a), b_rows = with_rows(b);
  const Rows x = rows_of(a_rows, "a"), y = rows_of(b_rows, "b");
  TORCH_CHECK_VALUE(x.count == y.count && x.size == y.size * decays, "a has shape ", a.sizes(),
                    " and b ", b.sizes(), "; they must agree.");
  check_shape(a_log, {y.size}, "A_log");
  check_shape(dt_bias, {x.size}, "dt_bias");
  check_dense_last_dim(dt_bias, "dt_bias");
  const bool bias_is_float = dt_bias.scalar_type() == at::kFloat;
  if (!bias_is_float) check_same_dtype(dt_bias, "dt_bias", a, "a");
  const auto options = a.options().dtype(at::kFloat);
  const Gates gates{at::empty({x.count, x.size}, options), at::empty({y.count, y.size}, options),
                    decays};
  DeltaGateArgs args{};
  args.a = x.data;
  args.a_stride = x.stride;
  args.b = y.data;
  args.b_stride = y.stride;
  args.a_log = typed_data<float>(a_log, "A_log");
  args.bias = dt_bias.data_ptr();
  args.bias_is_float = bias_is_float;
  args.log_decay = gates.log_decay.data_ptr<float>();
  args.beta = gates.beta.data_ptr<float>();
  args.heads = y.size;
  args.decays = decays;
  args.beta_range = static_cast<float>(beta_range);
  parallel_slices(x.count, row_grain(16 * x.size),
                  [=](Slice tokens) { kernels().delta_gates(dtype, args, tokens); });
  return gates;
}

// [tokens, heads, channels] with dense channels.
struct Channels {
  at::Tensor tensor;
  int64_t tokens, heads, size;
  TokenHeads data;
};

Channels channels_of(const at::Tensor& given, const char* name) {
  at::Tensor x = given.dim() == 4 && given.size(0) == 1 ? given.squeeze(0) : given;
  TORCH_CHECK_VALUE(x.dim() == 3, name, " has shape ", given.sizes(),
                    ", expected [tokens, heads, channels].");
  x = with_heads(x);
  return {x, x.size(0), x.size(1), x.size(2), {x.data_ptr(), x.stride(0), x.stride(1)}};
}

StepSequences sequences_of(const at::Tensor& starts, const at::Tensor& slots,
                           const OptionalTensor& continued = std::nullopt,
                           const OptionalTensor& accepted = std::nullopt) {
  return {starts, 0, 0, slots, kNullSlot, continued, true, accepted};
}

DType state_type(const at::Tensor& states, const at::Tensor& activations) {
  const DType dtype = dtype_of(states, "states");
  TORCH_CHECK_TYPE(dtype == DType::kFloat32 || states.scalar_type() == activations.scalar_type(),
                   "a recurrent state in ", states.scalar_type(), " beside activations in ",
                   activations.scalar_type(),
                   " is not supported: choose --mamba-ssm-cache-dtype float32.");
  return dtype;
}

void run(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
         const Gates& gates, const at::Tensor& states, const StepSequences& sequences,
         bool normalize, double epsilon, const at::Tensor& out) {
  const DType dtype = dtype_of(query, "query");
  for (const at::Tensor* other : {&key, &value, &out})
    check_same_dtype(*other, "key, value or out", query, "query");
  const DType state = state_type(states, query);
  const Channels q = channels_of(query, "query"), k = channels_of(key, "key"),
                 v = channels_of(value, "value");
  TORCH_CHECK_VALUE(q.tensor.sizes() == k.tensor.sizes() && q.tokens == v.tokens,
                    "query has shape ", query.sizes(), ", key ", key.sizes(), " and value ",
                    value.sizes(), ".");
  TORCH_CHECK_VALUE(k.heads > 0 && v.heads % k.heads == 0, v.heads, " value heads cannot share ",
                    k.heads, " key heads evenly.");
  TORCH_CHECK_VALUE(gates.decays == 1 || gates.decays == k.size, gates.decays,
                    " decays of a head cannot belong to keys of ", k.size, " channels.");
  check_shape(gates.log_decay, {v.tokens, v.heads * gates.decays}, "the decay");
  check_shape(gates.beta, {v.tokens, v.heads}, "beta");
  TORCH_CHECK_VALUE(states.dim() == 4 && states.size(1) == v.heads && states.size(2) == k.size &&
                        states.size(3) == v.size && is_dense_in_last_dim(states) &&
                        (k.size <= 1 || states.stride(2) == v.size),
                    "states has shape ", states.sizes(), " and strides ", states.strides(),
                    ", expected dense heads of [slots, ", v.heads, ", ", k.size, ", ", v.size,
                    "].");
  check_shape(out, v.tensor.sizes(), "out");
  check_dense_last_dim(out, "out");
  DeltaRuleArgs args{};
  args.query = q.data;
  args.key = k.data;
  args.value = v.data;
  args.log_decay = typed_data<float>(gates.log_decay, "the decay");
  args.beta = typed_data<float>(gates.beta, "beta");
  args.out = {out.data_ptr(), out.stride(0), out.stride(1)};
  args.states = states.data_ptr();
  args.slot_stride = states.stride(0);
  args.state_head_stride = states.stride(1);
  args.heads = static_cast<int>(v.heads);
  args.key_heads = static_cast<int>(k.heads);
  args.key_dim = k.size;
  args.value_dim = v.size;
  args.decays = gates.decays;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(k.size)));
  args.epsilon = static_cast<float>(epsilon);
  args.normalize = normalize;
  const int64_t items = v.heads * ceil_div(v.size, kDeltaColumns);
  const KernelTable& table = kernels();
  parallel_items([=] { return sequences.get().count * items; },
                 table.delta_scratch_floats(k.size, gates.decays),
                 [=, rule = table.delta_rule](int64_t i, float* scratch) {
                   DeltaRuleArgs now = args;
                   now.sequences = sequences.get();
                   rule(dtype, state, now, i, scratch);
                 });
}

void check_softplus(double beta, double threshold) {
  // Beyond the threshold others take x for softplus(x), which differs by less than fp32 shows.
  TORCH_CHECK_NOT_IMPLEMENTED(beta == 1.0 && threshold >= 17.0, "softplus with beta ", beta,
                              " and threshold ", threshold,
                              " is not supported: 1 and at least 17 are.");
}

at::Tensor fp32_rows(const at::Tensor& gate, const at::Tensor& value) {
  return gate.to(at::kFloat).reshape({-1, value.size(-2)}).contiguous();
}

}  // namespace

void gated_delta_rule(at::Tensor& out, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value, const at::Tensor& a, const at::Tensor& b,
                      const at::Tensor& a_log, const at::Tensor& dt_bias, at::Tensor& states,
                      const at::Tensor& slots, const at::Tensor& resumes,
                      const at::Tensor& query_start_loc, const OptionalTensor& accepted,
                      double beta_range) {
  run(query, key, value, gates_of(a_log, a, b, dt_bias, beta_range), states,
      sequences_of(query_start_loc, slots, resumes, accepted), true, kNormEpsilon, out);
}

std::tuple<at::Tensor, at::Tensor> fused_gdn_gating(const at::Tensor& a_log, const at::Tensor& a,
                                                    const at::Tensor& b,
                                                    const at::Tensor& dt_bias) {
  const Gates gates = gates_of(a_log, a, b, dt_bias);
  return {gates.log_decay.unsqueeze(0), gates.beta.unsqueeze(0)};
}

std::tuple<at::Tensor, at::Tensor> chunk_gated_delta_rule(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& g,
    const at::Tensor& beta, const at::Tensor& initial_state, bool output_final_state,
    const at::Tensor& cu_seqlens, bool head_first, bool use_qk_l2norm_in_kernel,
    const at::Tensor& initial_state_indices, double eps) {
  TORCH_CHECK_NOT_IMPLEMENTED(!head_first, "heads before tokens are not supported.");
  const at::Tensor out = at::empty(value.sizes(), value.options());
  run(query, key, value, {fp32_rows(g, value), fp32_rows(beta, value), 1}, initial_state,
      sequences_of(cu_seqlens, initial_state_indices), use_qk_l2norm_in_kernel, eps,
      channels_of(out, "out").tensor);
  if (!output_final_state) return {out, at::empty({0}, initial_state.options())};
  return {out, initial_state.index_select(0, initial_state_indices.to(at::kLong))};
}

at::Tensor sigmoid_gating_delta_rule_update(
    const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& a, const at::Tensor& b, at::Tensor& initial_state_source,
    const at::Tensor& initial_state_indices, const at::Tensor& cu_seqlens,
    bool use_qk_l2norm_in_kernel, double softplus_beta, double softplus_threshold) {
  check_softplus(softplus_beta, softplus_threshold);
  const at::Tensor value = channels_of(v, "v").tensor;
  const at::Tensor out = at::empty(value.sizes(), value.options());
  run(q, k, value, gates_of(a_log, a, b, dt_bias), initial_state_source,
      sequences_of(cu_seqlens, initial_state_indices), use_qk_l2norm_in_kernel, kNormEpsilon, out);
  return out.unsqueeze(1);
}

at::Tensor sigmoid_gating_delta_rule_update_spec(
    const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& a, const at::Tensor& b, at::Tensor& initial_state_source,
    const at::Tensor& spec_state_indices, const at::Tensor& num_accepted_tokens,
    const at::Tensor& cu_seqlens, bool use_qk_l2norm_in_kernel, double softplus_beta,
    double softplus_threshold) {
  check_softplus(softplus_beta, softplus_threshold);
  const at::Tensor out = at::empty(v.sizes(), v.options());
  run(q, k, v, gates_of(a_log, a, b, dt_bias), initial_state_source,
      sequences_of(cu_seqlens, spec_state_indices, std::nullopt, num_accepted_tokens),
      use_qk_l2norm_in_kernel, kNormEpsilon, out);
  return out;
}

}  // namespace cpu_backend

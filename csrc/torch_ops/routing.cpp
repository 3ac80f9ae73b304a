// The host's routers that are ops: which experts take a token, and with what weights.  A router is
// small beside its experts, so torch's ops do.
#include <cfloat>

#include "torch_ops/adapters.h"

namespace cpu_backend {
namespace {

// gating_output [tokens, experts] to fp32.
at::Tensor scores_of(const at::Tensor& gating_output, c10::string_view scoring_func) {
  const at::Tensor logits = gating_output.to(at::kFloat);
  if (scoring_func == "sigmoid") return logits.sigmoid();
  if (scoring_func == "sqrtsoftplus") return at::softplus(logits).sqrt();
  TORCH_CHECK_VALUE(scoring_func == "softmax", "scoring_func '", scoring_func,
                    "' is unknown: softmax, sigmoid and sqrtsoftplus are.");
  return logits.softmax(-1);
}

void check_no_shared_experts(int64_t num_fused_shared_experts) {
  TORCH_CHECK_NOT_IMPLEMENTED(num_fused_shared_experts == 0,
                              "shared experts among the routed ones are not supported: compute "
                              "them as a layer of their own.");
}

std::tuple<at::Tensor, at::Tensor> chosen(const at::Tensor& weights, const at::Tensor& ids,
                                          bool renormalize, double factor) {
  const at::Tensor sum = weights.sum(-1, /*keepdim=*/true).clamp_min(FLT_MIN);
  const at::Tensor scaled = renormalize ? weights * (factor / sum) : weights;
  return {scaled.contiguous(), ids.to(at::kInt).contiguous()};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> biased_topk(const at::Tensor&, const at::Tensor& gating_output,
                                               const at::Tensor& correction_bias, int64_t topk,
                                               bool renormalize, c10::string_view scoring_func,
                                               int64_t num_fused_shared_experts,
                                               std::optional<double> routed_scaling_factor,
                                               bool apply_routed_scaling_factor_on_output) {
  check_no_shared_experts(num_fused_shared_experts);
  TORCH_CHECK_VALUE(scoring_func != "softmax", "biased scores are sigmoid or sqrtsoftplus.");
  const at::Tensor scores = scores_of(gating_output, scoring_func);
  // The bias steers the choice alone.
  const at::Tensor ids = std::get<1>((scores + correction_bias.to(at::kFloat)).topk(topk, -1));
  const double factor =
      apply_routed_scaling_factor_on_output ? routed_scaling_factor.value_or(1.0) : 1.0;
  return chosen(scores.gather(-1, ids), ids, renormalize, factor);
}

std::tuple<at::Tensor, at::Tensor> hash_topk(const at::Tensor& gating_output,
                                             const at::Tensor& tid2eid, int64_t topk,
                                             c10::string_view scoring_func,
                                             int64_t num_fused_shared_experts, int64_t num_experts,
                                             double routed_scaling_factor) {
  check_no_shared_experts(num_fused_shared_experts);
  TORCH_CHECK_VALUE(
      tid2eid.dim() == 2 && tid2eid.size(1) == topk && gating_output.size(-1) == num_experts,
      "tid2eid ", tid2eid.sizes(), " must name ", topk, " of ", num_experts,
      " experts for each token.");
  const at::Tensor weights =
      scores_of(gating_output, scoring_func).gather(-1, tid2eid.to(at::kLong));
  return chosen(weights, tid2eid, scoring_func != "softmax", routed_scaling_factor);
}

}  // namespace cpu_backend

// The host's ops that are adapters over those of ops.h: same numbers, the host's layouts.
#pragma once

#include "torch_ops/ops.h"

namespace cpu_backend {

// quant_activations.cpp
void dynamic_scaled_fp8_quant(at::Tensor& result, const at::Tensor& input, at::Tensor& scale);
void dynamic_per_token_scaled_fp8_quant(at::Tensor& result, const at::Tensor& input,
                                        at::Tensor& scale, const OptionalTensor& scale_ub);
// Codes [rows, channels] and fp32 scales, one per row (channelwise) or one.
std::tuple<at::Tensor, at::Tensor> quantize_fp8e4m3(const at::Tensor& input, bool channelwise,
                                                    const OptionalTensor& scale_opt);

// prepacked.cpp
at::Tensor convert_weight_packed(const at::Tensor& weight);
at::Tensor convert_scale_packed(const at::Tensor& scale);
std::tuple<at::Tensor, at::Tensor, at::Tensor> convert_weight_packed_scale_zp(
    const at::Tensor& weight, const at::Tensor& qzeros, const at::Tensor& scales, int64_t method);
std::tuple<at::Tensor, at::Tensor> float8_linear_prepack(const at::Tensor& weight,
                                                         const at::Tensor& scales);
void prepack_moe_weight(const at::Tensor& weight, at::Tensor& packed_weight, c10::string_view isa);
void weight_packed_linear(at::Tensor& out, const at::Tensor& mat1, const at::Tensor& mat2,
                          const OptionalTensor& bias, bool is_vnni);
void bmm(at::Tensor& out, const at::Tensor& mat1, const at::Tensor& mat2, bool is_vnni,
         const OptionalTensor& scale);
at::Tensor int8_scaled_mm_with_quant(const at::Tensor& mat1, const at::Tensor& mat2,
                                     const at::Tensor& scales2, const OptionalTensor& bias,
                                     at::ScalarType out_dtype, bool is_vnni);
at::Tensor fp8_scaled_mm(const at::Tensor& mat1, const at::Tensor& mat2, const at::Tensor& scales2,
                         at::IntArrayRef block_size, const OptionalTensor& bias,
                         at::ScalarType out_dtype, bool is_vnni);
at::Tensor fp8_scaled_mm_with_quant(const at::Tensor& act, const OptionalTensor& act_scales,
                                    bool channelwise, const at::Tensor& weight,
                                    const at::Tensor& weight_scales, const OptionalTensor& bias,
                                    at::ScalarType output_dtype);
at::Tensor int4_scaled_mm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& w_zeros,
                          const at::Tensor& w_scales, const OptionalTensor& bias);
void gemm_wna16(const at::Tensor& input, const at::Tensor& q_weight, at::Tensor& output,
                const at::Tensor& scales, const OptionalTensor& zeros, const OptionalTensor& bias,
                int64_t pack_factor, c10::string_view isa_hint);
void cpu_fused_moe(at::Tensor& output, const at::Tensor& input, const at::Tensor& w13,
                   const at::Tensor& w2, const OptionalTensor& w13_bias,
                   const OptionalTensor& w2_bias, const at::Tensor& topk_weights,
                   const at::Tensor& topk_id, bool skip_weighted, c10::string_view act,
                   c10::string_view isa);
void fused_experts(at::Tensor& out, const at::Tensor& hidden_states, const at::Tensor& w1,
                   const at::Tensor& w2, const at::Tensor& topk_weights, const at::Tensor& topk_ids,
                   int64_t method, const OptionalTensor& w1_scale, const OptionalTensor& w2_scale,
                   const OptionalTensor& w1_zero, const OptionalTensor& w2_zero,
                   const OptionalTensor& a1_scale, at::OptionalIntArrayRef block_size,
                   const OptionalTensor& w1_bias, const OptionalTensor& w2_bias,
                   std::optional<double> alpha, std::optional<double> limit, bool is_vnni);
at::Tensor dynamic_4bit_int_moe(const at::Tensor& x, const at::Tensor& topk_ids,
                                const at::Tensor& topk_weights, const at::Tensor& w13_packed,
                                const at::Tensor& w2_packed, int64_t hidden_size,
                                int64_t intermediate_size, int64_t group_size,
                                bool apply_router_weight_on_input, int64_t activation_kind);

// routing.cpp
std::tuple<at::Tensor, at::Tensor> biased_topk(const at::Tensor& hidden_states,
                                               const at::Tensor& gating_output,
                                               const at::Tensor& correction_bias, int64_t topk,
                                               bool renormalize, c10::string_view scoring_func,
                                               int64_t num_fused_shared_experts,
                                               std::optional<double> routed_scaling_factor,
                                               bool apply_routed_scaling_factor_on_output);
std::tuple<at::Tensor, at::Tensor> hash_topk(const at::Tensor& gating_output,
                                             const at::Tensor& tid2eid, int64_t topk,
                                             c10::string_view scoring_func,
                                             int64_t num_fused_shared_experts, int64_t num_experts,
                                             double routed_scaling_factor);

// row_attention.cpp
void mla_decode_kvcache(at::Tensor& out, const at::Tensor& query, const at::Tensor& kv_cache,
                        double scale, const at::Tensor& block_tables, const at::Tensor& seq_lens);
void decode_attention(const at::Tensor& query, const at::Tensor& k_buffer,
                      const at::Tensor& v_buffer, at::Tensor& output, const OptionalTensor& key,
                      const OptionalTensor& value, const OptionalTensor& loc,
                      const at::Tensor& attn_logits, const at::Tensor& req_to_token,
                      const at::Tensor& req_pool_indices, const at::Tensor& seq_lens,
                      double sm_scale, double logit_cap, bool is_cross_attn,
                      int64_t sliding_window_size, const OptionalTensor& encoder_lens,
                      const OptionalTensor& sinks);
void extend_attention(const at::Tensor& q_extend, const OptionalTensor& k_extend,
                      const OptionalTensor& v_extend, at::Tensor& o_extend,
                      const at::Tensor& k_buffer, const at::Tensor& v_buffer,
                      const at::Tensor& req_to_token, const at::Tensor& req_pool_indices,
                      const at::Tensor& seq_lens, const at::Tensor& extend_seq_lens,
                      const at::Tensor& extend_start_loc, int64_t max_len_extend, double sm_scale,
                      double logit_cap, bool is_cross_attn, int64_t sliding_window_size,
                      const OptionalTensor& encoder_lens, const OptionalTensor& sinks,
                      const OptionalTensor& tree_mask);
void concat_and_cache_mla(const at::Tensor& kv_c_normed, const at::Tensor& k_pe,
                          at::Tensor& kv_cache, const at::Tensor& slot_mapping);

}  // namespace cpu_backend

// The functions behind the registered ops; schemas and names are in library.cpp.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string>
#include <vector>

#include "core/view.h"

namespace cpu_backend {

using OptionalTensor = std::optional<at::Tensor>;

// norm.cpp
void rms_norm(at::Tensor& out, const at::Tensor& input, const OptionalTensor& weight,
              double epsilon);
void fused_add_rms_norm(at::Tensor& input, at::Tensor& residual, const OptionalTensor& weight,
                        double epsilon);
// With a weight that lacks 1.
void gemma_rms_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& weight,
                    double epsilon);
void fused_add_gemma_rms_norm(at::Tensor& input, at::Tensor& residual, const at::Tensor& weight,
                              double epsilon);
void layer_norm(at::Tensor& out, const at::Tensor& input, const OptionalTensor& residual,
                const OptionalTensor& weight, const OptionalTensor& bias, double epsilon);
void gated_rms_norm(at::Tensor& out, const at::Tensor& input, const at::Tensor& gate,
                    const at::Tensor& weight, double epsilon, bool gate_first,
                    c10::string_view activation);

// lora.cpp: y = scale * x @ weights.T, and y += x @ weights.T, each row with the weights of its
// adapter.
void lora_shrink(at::Tensor& y, const at::Tensor& x, const at::Tensor& weights,
                 const at::Tensor& adapters, double scale);
void lora_expand(at::Tensor& y, const at::Tensor& x, const at::Tensor& weights,
                 const at::Tensor& adapters);

// activation.cpp
enum class Gate { kNone, kFirst, kSecond };  // which half of the input is activated
void activation(at::Tensor& out, const at::Tensor& input, Activation kind, Gate gate);

// rope.cpp
void rotary_embedding(const at::Tensor& positions, at::Tensor& query, OptionalTensor key,
                      int64_t head_size, const at::Tensor& cos_sin_cache, bool is_neox,
                      int64_t rope_dim_offset, bool inverse);

// linear.cpp
int64_t create_linear(const at::Tensor& weight, int64_t primitive_cache_size);
int64_t pack_linear(const at::Tensor& weight, int64_t parts);
void release_linear(int64_t handle);
void onednn_mm(at::Tensor& c, const at::Tensor& a, const OptionalTensor& bias,
               const at::Tensor& handle);
at::Tensor packed_rows(const at::Tensor& ids, int64_t handle);
at::Tensor linear(const at::Tensor& x, int64_t handle, int64_t out_features,
                  const OptionalTensor& bias, bool float_output);
void linear_add(at::Tensor& residual, const at::Tensor& x, int64_t handle,
                const OptionalTensor& bias);
void linear_act(at::Tensor& out, const at::Tensor& x, int64_t handle, const OptionalTensor& bias,
                c10::string_view activation);
void linear_heads(at::Tensor& out, const at::Tensor& x, at::IntArrayRef handles);
void linear_act_and_mul(at::Tensor& out, const at::Tensor& x, int64_t handle,
                        const OptionalTensor& bias, c10::string_view activation);

// quant_linear.cpp
int64_t pack_quantized(const at::Tensor& codes, const std::string& order, int64_t bits, int64_t add,
                       const OptionalTensor& table, int64_t in_features, const at::Tensor& scales,
                       const OptionalTensor& zeros, const std::string& zero_kind,
                       const OptionalTensor& channels, int64_t group,
                       const std::string& activations, double static_scale, int64_t static_zero,
                       int64_t parts);
std::tuple<at::Tensor, at::Tensor, at::Tensor, double> quantize_weight(const at::Tensor& weight,
                                                                       int64_t bits, int64_t group);
int64_t packed_bytes(int64_t handle);
int64_t create_scaled_linear(const at::Tensor& b, const at::Tensor& b_scales,
                             at::ScalarType output_type, bool dynamic_act_quant, bool use_azp,
                             int64_t primitive_cache_size);
void onednn_scaled_mm(at::Tensor& c, const at::Tensor& a, const at::Tensor& a_scales,
                      const OptionalTensor& azp, const OptionalTensor& azp_adj,
                      const OptionalTensor& bias, const at::Tensor& handle);

// causal_conv.cpp
at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor& bias,
                       const at::Tensor& states, const at::Tensor& query_start_loc,
                       const at::Tensor& slots, const at::Tensor& resumes,
                       const OptionalTensor& accepted, bool silu);
at::Tensor causal_conv1d_fwd(const at::Tensor& x, const at::Tensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& conv_states,
                             const OptionalTensor& query_start_loc,
                             const OptionalTensor& cache_indices,
                             const OptionalTensor& has_initial_state, bool silu_activation,
                             int64_t pad_slot_id, bool is_weight_packed);
at::Tensor causal_conv1d_update(const at::Tensor& x, const at::Tensor& conv_states,
                                const at::Tensor& weight, const OptionalTensor& bias,
                                bool silu_activation, const OptionalTensor& num_accepted_tokens,
                                const OptionalTensor& conv_state_indices, int64_t pad_slot_id,
                                bool is_weight_packed);
at::Tensor causal_conv1d_update_vec(const at::Tensor& x, const at::Tensor& conv_state,
                                    const at::Tensor& weight, const OptionalTensor& bias,
                                    std::optional<c10::string_view> activation,
                                    const OptionalTensor& conv_state_indices,
                                    const OptionalTensor& query_start_loc, int64_t pad_slot_id);
at::Tensor causal_conv1d_weight_pack(const at::Tensor& weight);

// state_scan.cpp
void selective_state_update(at::Tensor& state, const at::Tensor& x, const at::Tensor& dt,
                            const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                            const OptionalTensor& d, const OptionalTensor& z,
                            const OptionalTensor& dt_bias, bool dt_softplus,
                            const OptionalTensor& state_batch_indices,
                            const OptionalTensor& dst_state_batch_indices, int64_t null_block_id,
                            at::Tensor& out, const OptionalTensor& num_accepted_tokens,
                            const OptionalTensor& cu_seqlens);
void state_scan(at::Tensor& out, at::Tensor& states, const at::Tensor& x, const at::Tensor& dt,
                const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                const OptionalTensor& d, const OptionalTensor& z, const OptionalTensor& dt_bias,
                bool dt_softplus, const at::Tensor& query_start_loc, const OptionalTensor& slots,
                const OptionalTensor& has_initial_state, const OptionalTensor& accepted);
void mamba_chunk_scan_fwd(at::Tensor& out, at::Tensor& final_states, const at::Tensor& x,
                          const at::Tensor& dt, const at::Tensor& a, const at::Tensor& b,
                          const at::Tensor& c, const OptionalTensor& d, const OptionalTensor& z,
                          const at::Tensor& cu_seqlens);
void selective_scan_fwd(at::Tensor& u, at::Tensor& delta, const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& c, const OptionalTensor& d, OptionalTensor z,
                        const OptionalTensor& delta_bias, bool delta_softplus,
                        const OptionalTensor& query_start_loc, const OptionalTensor& cache_indices,
                        const OptionalTensor& has_initial_state, at::Tensor& ssm_states,
                        int64_t null_block_id, int64_t block_size,
                        const OptionalTensor& first_block, const OptionalTensor& last_block,
                        const OptionalTensor& initial_state, const OptionalTensor& chunk_starts,
                        const OptionalTensor& last_chunks);

// experts.cpp
void experts(at::Tensor& out, const at::Tensor& x, at::IntArrayRef gate_up, at::IntArrayRef down,
             const OptionalTensor& gate_up_bias, const OptionalTensor& down_bias,
             const at::Tensor& topk_weights, const at::Tensor& topk_ids,
             c10::string_view activation);

// quant_activations.cpp
void static_scaled_int8_quant(at::Tensor& out, const at::Tensor& input, const at::Tensor& scale,
                              const OptionalTensor& azp);
void dynamic_scaled_int8_quant(at::Tensor& out, const at::Tensor& input, at::Tensor& scale,
                               const OptionalTensor& azp);
void static_scaled_fp8_quant(at::Tensor& result, const at::Tensor& input, const at::Tensor& scale,
                             std::optional<at::IntArrayRef> group_shape);

// attention.cpp
at::Tensor get_scheduler_metadata(int64_t num_req, int64_t num_heads_q, int64_t num_heads_kv,
                                  int64_t head_dim, const at::Tensor& seq_lens,
                                  at::ScalarType dtype, const at::Tensor& query_start_loc,
                                  bool causal, int64_t window_size, const std::string& isa_hint,
                                  bool enable_kv_split, const OptionalTensor& dynamic_causal,
                                  const std::string& kv_cache_dtype);
void reshape_and_cache(const at::Tensor& key, const at::Tensor& value, at::Tensor& key_cache,
                       at::Tensor& value_cache, const at::Tensor& slot_mapping,
                       const std::string& isa, double k_scale, double v_scale,
                       const std::string& kv_cache_dtype);
void attention_with_kv_cache(const at::Tensor& query, const at::Tensor& key_cache,
                             const at::Tensor& value_cache, at::Tensor& output,
                             const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                             double scale, bool causal, const OptionalTensor& alibi_slopes,
                             int64_t sliding_window_size, const at::Tensor& block_table,
                             double softcap, const at::Tensor& scheduler_metadata,
                             const OptionalTensor& s_aux, const OptionalTensor& dynamic_causal,
                             double k_scale, double v_scale, const std::string& kv_cache_dtype);
void compute_slot_mapping(const at::Tensor& query_start_loc, const at::Tensor& positions,
                          const at::Tensor& block_table, at::Tensor& slot_mapping,
                          int64_t block_size);

// sparse_attention.cpp
void cache_keys(const at::Tensor& keys, at::Tensor& cache, const at::Tensor& slot_mapping);
void cache_rows(const at::Tensor& rows, at::Tensor& cache, const at::Tensor& slot_mapping);
void choose_tokens(const at::Tensor& query, const at::Tensor& weights, const at::Tensor& key_cache,
                   const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                   const at::Tensor& block_table, double scale, at::Tensor& scores,
                   at::Tensor& chosen);
void sparse_attention(const at::Tensor& query, const at::Tensor& cache, at::Tensor& output,
                      const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                      const at::Tensor& block_table, const at::Tensor& chosen, double scale);

// delta_rule.cpp
void gated_delta_rule(at::Tensor& out, const at::Tensor& query, const at::Tensor& key,
                      const at::Tensor& value, const at::Tensor& a, const at::Tensor& b,
                      const at::Tensor& a_log, const at::Tensor& dt_bias, at::Tensor& states,
                      const at::Tensor& slots, const at::Tensor& resumes,
                      const at::Tensor& query_start_loc, const OptionalTensor& accepted,
                      double beta_range);
std::tuple<at::Tensor, at::Tensor> fused_gdn_gating(const at::Tensor& a_log, const at::Tensor& a,
                                                    const at::Tensor& b, const at::Tensor& dt_bias);
std::tuple<at::Tensor, at::Tensor> chunk_gated_delta_rule(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& g,
    const at::Tensor& beta, const at::Tensor& initial_state, bool output_final_state,
    const at::Tensor& cu_seqlens, bool head_first, bool use_qk_l2norm_in_kernel,
    const at::Tensor& initial_state_indices, double eps);
at::Tensor sigmoid_gating_delta_rule_update(
    const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& a, const at::Tensor& b, at::Tensor& initial_state_source,
    const at::Tensor& initial_state_indices, const at::Tensor& cu_seqlens,
    bool use_qk_l2norm_in_kernel, double softplus_beta, double softplus_threshold);
at::Tensor sigmoid_gating_delta_rule_update_spec(
    const at::Tensor& a_log, const at::Tensor& dt_bias, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor& a, const at::Tensor& b, at::Tensor& initial_state_source,
    const at::Tensor& spec_state_indices, const at::Tensor& num_accepted_tokens,
    const at::Tensor& cu_seqlens, bool use_qk_l2norm_in_kernel, double softplus_beta,
    double softplus_threshold);

// sample.cpp
at::Tensor greedy_argmax(const at::Tensor& logits);
at::Tensor fused_gumbel_argmax(const at::Tensor& logits, const at::Tensor& seeds);
void keep_top(at::Tensor& logits, const OptionalTensor& k, const OptionalTensor& p);
at::Tensor sample(at::Tensor& logits, const at::Tensor& temperature, const OptionalTensor& k,
                  const OptionalTensor& p, const OptionalTensor& min_p, const at::Tensor& seeds);
void apply_penalties(at::Tensor& logits, const at::Tensor& prompt, const at::Tensor& output,
                     const at::Tensor& output_start, const at::Tensor& repetition,
                     const at::Tensor& frequency, const at::Tensor& presence);
void apply_repetition_penalties(at::Tensor& logits, const at::Tensor& prompt_mask,
                                const at::Tensor& output_mask, const at::Tensor& penalties);

// limits.cpp
int64_t read_bytes(const at::Tensor& data);
int64_t multiply_adds(int64_t steps);

// collectives.cpp, Linux only
int64_t init_shm_manager(const std::string& name, int64_t group_size, int64_t rank,
                         int64_t thread_num);
std::string join_shm_manager(int64_t handle, const std::string& name);
void shm_allreduce(int64_t handle, at::Tensor& data);
void shm_all_gather(int64_t handle, const at::Tensor& data, at::Tensor& output);
void shm_gather(int64_t handle, const at::Tensor& data,
                const std::optional<std::vector<at::Tensor>>& outputs, int64_t dst);
void shm_send_tensor_list(int64_t handle, const std::vector<at::Tensor>& tensor_list, int64_t dst);
std::vector<at::Tensor> shm_recv_tensor_list(int64_t handle, int64_t src);
void abandon_groups();

// runtime.cpp
bool bind_threads(at::IntArrayRef cpus);
void set_num_threads(int64_t threads);
std::string bind_memory(at::IntArrayRef nodes);
void init_cpu_memory_env(at::IntArrayRef nodes);
std::string describe();

}  // namespace cpu_backend

// Every schema on one page.
//
// `_C` holds the host's names with the host's signatures, so its Python runs on them unchanged;
// each is defined only where no other library of the process has defined it.  `cpu_backend` holds
// what the host has no name for.
#include <torch/library.h>

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdlib>

#include "dispatch/select.h"
#include "torch_ops/adapters.h"
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/speculation.h"

namespace cpu_backend {

const KernelTable& kernels() {
  static const KernelTable* const table = [] {
    std::string error;
    const KernelTable* selected = select_table(std::getenv("CPU_BACKEND_ISA"), &error);
    TORCH_CHECK_VALUE(selected, error);
    return selected;
  }();
  return *table;
}

namespace {

template <Activation kKind, Gate kGate>
void activation_op(at::Tensor& out, const at::Tensor& input) {
  activation(out, input, kKind, kGate);
}

constexpr auto kNoDevice = c10::DispatchKey::CompositeExplicitAutograd;

// Of the host's own kernels for one kind of CPU: Arm's library, AMX products of fp8.
bool not_used() { return false; }

// Attention takes the host's hints of instruction sets as they come; true for those that it
// computes with.
bool has_isa(c10::string_view isa) {
  return isa == "vec" || isa == "vec16" || std::string_view(kernels().target).rfind(isa, 0) == 0;
}

// For the CPU key, so that the compiler's fake tensors never reach a kernel; ops without a tensor
// argument have no device to be dispatched by.
template <class F>
void define(torch::Library& library, const std::string& schema, F* function,
            c10::DispatchKey key = c10::DispatchKey::CPU) {
  const std::string name = "_C::" + schema.substr(0, schema.find('('));
  if (c10::Dispatcher::singleton().findSchema({name, ""})) return;
  library.def(schema.c_str());
  library.impl(schema.substr(0, schema.find('(')).c_str(), torch::dispatch(key, function));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(_C, m) {
  using A = Activation;
  define(m, "silu_and_mul(Tensor! out, Tensor input) -> ()", activation_op<A::kSilu, Gate::kFirst>);
  define(m, "mul_and_silu(Tensor! out, Tensor input) -> ()",
         activation_op<A::kSilu, Gate::kSecond>);
  define(m, "gelu_and_mul(Tensor! out, Tensor input) -> ()", activation_op<A::kGelu, Gate::kFirst>);
  define(m, "gelu_tanh_and_mul(Tensor! out, Tensor input) -> ()",
         activation_op<A::kGeluTanh, Gate::kFirst>);
  define(m, "gelu_new(Tensor! out, Tensor input) -> ()", activation_op<A::kGeluTanh, Gate::kNone>);
  define(m, "gelu_fast(Tensor! out, Tensor input) -> ()", activation_op<A::kGeluTanh, Gate::kNone>);
  define(m, "gelu_tanh(Tensor! out, Tensor input) -> ()", activation_op<A::kGeluTanh, Gate::kNone>);
  define(m, "gelu_quick(Tensor! out, Tensor input) -> ()",
         activation_op<A::kGeluQuick, Gate::kNone>);
  define(m, "relu_squared(Tensor! out, Tensor input) -> ()", activation_op<A::kRelu2, Gate::kNone>);

  define(m, "rms_norm(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()", rms_norm);
  define(m,
         "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()",
         fused_add_rms_norm);
  define(m,
         "rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, "
         "Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()",
         rotary_embedding);

  define(m, "create_onednn_mm_handler(Tensor b, int primitive_cache_size) -> int", create_linear);
  define(m, "onednn_mm(Tensor! c, Tensor a, Tensor? bias, Tensor handler_tensor) -> ()", onednn_mm);
  define(m, "release_dnnl_matmul_handler(int handler) -> ()", release_linear, kNoDevice);
  define(m,
         "create_onednn_scaled_mm_handler(Tensor b, Tensor b_scales, ScalarType output_type, "
         "bool dynamic_act_quant, bool use_azp, int primitive_cache_size) -> int",
         create_scaled_linear);
  define(m,
         "onednn_scaled_mm(Tensor! c, Tensor a, Tensor a_scales, Tensor? azp, Tensor? azp_adj, "
         "Tensor? bias, Tensor handler_tensor) -> ()",
         onednn_scaled_mm);
  define(m, "static_scaled_int8_quant(Tensor! out, Tensor input, Tensor scale, Tensor? azp) -> ()",
         static_scaled_int8_quant);
  define(m,
         "dynamic_scaled_int8_quant(Tensor! out, Tensor input, Tensor! scale, Tensor!? azp) -> ()",
         dynamic_scaled_int8_quant);
  define(m,
         "static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, "
         "int[]? group_shape=None) -> ()",
         static_scaled_fp8_quant);
  define(m, "dynamic_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale) -> ()",
         dynamic_scaled_fp8_quant);
  define(m,
         "dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, "
         "Tensor? scale_ub) -> ()",
         dynamic_per_token_scaled_fp8_quant);
  define(m,
         "quantize_fp8e4m3_vec(Tensor input, bool channelwise, Tensor? scale_opt) "
         "-> (Tensor, Tensor)",
         quantize_fp8e4m3);
  define(m, "is_onednn_acl_supported() -> bool", not_used, kNoDevice);
  define(m, "cpu_has_amx_fp8() -> bool", not_used, kNoDevice);

  define(m, "convert_weight_packed(Tensor weight) -> Tensor", convert_weight_packed);
  define(m, "convert_scale_packed(Tensor scale) -> Tensor", convert_scale_packed);
  define(m,
         "convert_weight_packed_scale_zp(Tensor weight, Tensor qzeros, Tensor scales, "
         "int quant_method_4bit) -> (Tensor, Tensor, Tensor)",
         convert_weight_packed_scale_zp);
  define(m, "float8_linear_prepack_cpu(Tensor weight, Tensor scales) -> (Tensor, Tensor)",
         float8_linear_prepack);
  define(m, "prepack_moe_weight(Tensor weight, Tensor(a1!) packed_weight, str isa) -> ()",
         prepack_moe_weight);
  define(m,
         "weight_packed_linear(Tensor(a0!) out, Tensor mat1, Tensor mat2, Tensor? bias, "
         "bool is_vnni) -> ()",
         weight_packed_linear);
  define(m, "bmm_cpu(Tensor(a!) out, Tensor mat1, Tensor mat2, bool is_vnni, Tensor? scale) -> ()",
         bmm);
  define(m,
         "int8_scaled_mm_with_quant(Tensor mat1, Tensor mat2, Tensor scales2, Tensor? bias, "
         "ScalarType out_dtype, bool is_vnni) -> Tensor",
         int8_scaled_mm_with_quant);
  define(m,
         "fp8_scaled_mm_cpu(Tensor mat1, Tensor mat2, Tensor scales2, SymInt[] block_size, "
         "Tensor? bias, ScalarType out_dtype, bool is_vnni) -> Tensor",
         fp8_scaled_mm);
  define(m,
         "fp8_scaled_mm_with_quant(Tensor act, Tensor? act_scales, bool channelwise, "
         "Tensor weight, Tensor weight_scales, Tensor? bias, ScalarType output_dtype) -> Tensor",
         fp8_scaled_mm_with_quant);
  define(m,
         "int4_scaled_mm_cpu(Tensor x, Tensor w, Tensor w_zeros, Tensor w_scales, Tensor? bias) "
         "-> Tensor",
         int4_scaled_mm);
  define(m,
         "cpu_gemm_wna16(Tensor input, Tensor q_weight, Tensor(a2!) output, Tensor scales, "
         "Tensor? zeros, Tensor? bias, SymInt pack_factor, str isa_hint) -> ()",
         gemm_wna16);
  define(m,
         "cpu_fused_moe(Tensor(a0!) output, Tensor input, Tensor w13, Tensor w2, "
         "Tensor? w13_bias, Tensor? w2_bias, Tensor topk_weights, Tensor topk_id, "
         "bool skip_weighted, str act, str isa) -> ()",
         cpu_fused_moe);
  define(m,
         "fused_experts_cpu(Tensor(a0!) out, Tensor hidden_states, Tensor w1, Tensor w2, "
         "Tensor topk_weights, Tensor topk_ids, int moe_comp_method, Tensor? w1_scale, "
         "Tensor? w2_scale, Tensor? w1_zero, Tensor? w2_zero, Tensor? a1_scale, "
         "int[]? block_size, Tensor? w1_bias, Tensor? w2_bias, float? alpha, float? limit, "
         "bool is_vnni) -> ()",
         fused_experts);
  define(m,
         "dynamic_4bit_int_moe(Tensor x, Tensor topk_ids, Tensor topk_weights, "
         "Tensor w13_packed, Tensor w2_packed, int hidden_size, int intermediate_size, "
         "int group_size, bool apply_router_weight_on_input, int activation_kind) -> Tensor",
         dynamic_4bit_int_moe);
  define(m,
         "biased_topk_cpu(Tensor hidden_states, Tensor gating_output, Tensor correction_bias, "
         "int topk, bool renormalize, str scoring_func, int num_fused_shared_experts, "
         "float? routed_scaling_factor, bool apply_routed_scaling_factor_on_output) "
         "-> (Tensor, Tensor)",
         biased_topk);
  define(m,
         "hash_topk_cpu(Tensor gating_output, Tensor tid2eid, int topk, str scoring_func, "
         "int num_fused_shared_experts, int num_experts, float routed_scaling_factor) "
         "-> (Tensor, Tensor)",
         hash_topk);

  define(m, "cpu_attn_has_isa(str isa) -> bool", has_isa, kNoDevice);
  define(m,
         "mla_decode_kvcache(Tensor! out, Tensor query, Tensor kv_cache, float scale, "
         "Tensor block_tables, Tensor seq_lens) -> ()",
         mla_decode_kvcache);
  define(m,
         "decode_attention_cpu(Tensor query, Tensor k_buffer, Tensor v_buffer, "
         "Tensor(a!) output, Tensor? key, Tensor? value, Tensor? loc, Tensor attn_logits, "
         "Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, float sm_scale, "
         "float logit_cap, bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, "
         "Tensor? sinks) -> ()",
         decode_attention);
  define(m,
         "extend_attention_cpu(Tensor q_extend, Tensor? k_extend, Tensor? v_extend, "
         "Tensor(a!) o_extend, Tensor k_buffer, Tensor v_buffer, Tensor req_to_token, "
         "Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
         "Tensor extend_start_loc, int max_len_extend, float sm_scale, float logit_cap, "
         "bool is_cross_attn, int sliding_window_size, Tensor? encoder_lens, Tensor? sinks, "
         "Tensor? tree_mask=None) -> ()",
         extend_attention);
  define(m,
         "concat_and_cache_mla_cpu(Tensor kv_c_normed, Tensor k_pe, Tensor(a!) kv_cache, "
         "Tensor slot_mapping) -> ()",
         concat_and_cache_mla);

  define(m,
         "get_scheduler_metadata(int num_req, int num_heads_q, int num_heads_kv, int head_dim, "
         "Tensor seq_lens, ScalarType dtype, Tensor query_start_loc, bool casual, "
         "int window_size, str isa_hint, bool enable_kv_split, Tensor? dynamic_causal, "
         "str kv_cache_dtype=\"auto\") -> Tensor",
         get_scheduler_metadata);
  define(m,
         "cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor(a2!) key_cache, "
         "Tensor(a3!) value_cache, Tensor slot_mapping, str isa, float k_scale=1., "
         "float v_scale=1., str kv_cache_dtype=\"auto\") -> ()",
         reshape_and_cache);
  define(m,
         "cpu_attention_with_kv_cache(Tensor query, Tensor key_cache, Tensor value_cache, "
         "Tensor(a3!) output, Tensor query_start_loc, Tensor seq_lens, float scale, bool causal, "
         "Tensor? alibi_slopes, SymInt sliding_window_size, Tensor block_table, float softcap, "
         "Tensor scheduler_metadata, Tensor? s_aux, Tensor? dynamic_causal, float k_scale=1., "
         "float v_scale=1., str kv_cache_dtype=\"auto\") -> ()",
         attention_with_kv_cache);
  define(m,
         "compute_slot_mapping_kernel_impl(Tensor query_start_loc, Tensor positions, "
         "Tensor block_table, Tensor(a3!) slot_mapping, SymInt block_size) -> ()",
         compute_slot_mapping);

  define(m,
         "causal_conv1d_fwd_cpu(Tensor x, Tensor weight, Tensor? bias, Tensor(a3!)? conv_states, "
         "Tensor? query_start_loc, Tensor? cache_indices, Tensor? has_initial_state, "
         "bool silu_activation, int pad_slot_id, bool is_weight_packed) -> Tensor",
         causal_conv1d_fwd);
  define(m,
         "causal_conv1d_update_cpu(Tensor x, Tensor(a1!) conv_states, Tensor weight, Tensor? bias, "
         "bool silu_activation, Tensor? num_accepted_tokens, Tensor? conv_state_indices, "
         "int pad_slot_id, bool is_weight_packed) -> Tensor",
         causal_conv1d_update);
  define(m,
         "causal_conv1d_update_cpu_vec(Tensor x, Tensor(a1!) conv_state, Tensor weight, "
         "Tensor? bias, str? activation, Tensor? conv_state_indices, Tensor? query_start_loc, "
         "SymInt pad_slot_id) -> Tensor",
         causal_conv1d_update_vec);
  define(m, "causal_conv1d_weight_pack(Tensor weight) -> Tensor", causal_conv1d_weight_pack);
  define(m,
         "mamba_chunk_scan_fwd_cpu(Tensor! out, Tensor! final_states, Tensor x, Tensor dt, "
         "Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor cu_seqlens) -> ()",
         mamba_chunk_scan_fwd);
  define(m,
         "selective_state_update_cpu(Tensor! state, Tensor x, Tensor dt, Tensor A, Tensor B, "
         "Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, bool dt_softplus, "
         "Tensor? state_batch_indices, Tensor? dst_state_batch_indices, SymInt null_block_id, "
         "Tensor! out, Tensor? num_accepted_tokens, Tensor? cu_seqlens) -> ()",
         selective_state_update);
  define(m,
         "selective_scan_fwd(Tensor! u, Tensor! delta, Tensor! A, Tensor! B, Tensor! C, "
         "Tensor? D_, Tensor!? z_, Tensor? delta_bias_, bool delta_softplus, "
         "Tensor? query_start_loc, Tensor? cache_indices, Tensor? has_initial_state, "
         "Tensor! ssm_states, int null_block_id, int block_size, "
         "Tensor? block_idx_first_scheduled_token, Tensor? block_idx_last_scheduled_token, "
         "Tensor? initial_state_idx, Tensor? cu_chunk_seqlen, Tensor? last_chunk_indices) -> ()",
         selective_scan_fwd);
  define(
      m,
      "fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)",
      fused_gdn_gating);
  define(m,
         "chunk_gated_delta_rule_cpu(Tensor query, Tensor key, Tensor value, Tensor g, "
         "Tensor beta, Tensor initial_state, bool output_final_state, Tensor cu_seqlens, "
         "bool head_first, bool use_qk_l2norm_in_kernel, Tensor initial_state_indices, "
         "float eps=1e-5) -> (Tensor, Tensor)",
         chunk_gated_delta_rule);
  define(m,
         "fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias, Tensor q, "
         "Tensor k, Tensor v, Tensor a, Tensor b, Tensor(a!) initial_state_source, "
         "Tensor initial_state_indices, Tensor cu_seqlens, bool use_qk_l2norm_in_kernel, "
         "float softplus_beta=1., float softplus_threshold=20.) -> Tensor",
         sigmoid_gating_delta_rule_update);
  define(m,
         "fused_sigmoid_gating_delta_rule_update_spec_cpu(Tensor A_log, Tensor dt_bias, Tensor q, "
         "Tensor k, Tensor v, Tensor a, Tensor b, Tensor(a!) initial_state_source, "
         "Tensor spec_state_indices, Tensor num_accepted_tokens, Tensor cu_seqlens, "
         "bool use_qk_l2norm_in_kernel, float softplus_beta=1., float softplus_threshold=20.) "
         "-> Tensor",
         sigmoid_gating_delta_rule_update_spec);

  define(m, "greedy_argmax(Tensor logits) -> Tensor", greedy_argmax);
  define(m, "fused_gumbel_argmax(Tensor logits, Tensor seeds) -> Tensor", fused_gumbel_argmax);
  define(m,
         "apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask, Tensor output_mask, "
         "Tensor repetition_penalties) -> ()",
         apply_repetition_penalties);
  define(m,
         "expand_kernel_impl(Tensor(a0!) output, Tensor input, Tensor cu_num_tokens, "
         "SymInt replace_from, SymInt replace_to) -> ()",
         expand);
  define(m,
         "rejection_greedy_sample_kernel_impl(Tensor(a0!) output_token_ids, "
         "Tensor cu_num_draft_tokens, Tensor draft_token_ids, Tensor target_argmax, "
         "Tensor bonus_token_ids, Tensor? is_greedy, SymInt max_spec_len) -> ()",
         reject_greedy);
  define(m,
         "rejection_random_sample_kernel_impl(Tensor(a0!) output_token_ids, "
         "Tensor cu_num_draft_tokens, Tensor draft_token_ids, Tensor? draft_probs, "
         "Tensor target_probs, Tensor bonus_token_ids, Tensor recovered_token_ids, "
         "Tensor uniform_probs, Tensor? is_greedy, SymInt max_spec_len, SymInt vocab_size, "
         "bool no_draft_probs) -> ()",
         reject_random);
  define(m,
         "sample_recovered_tokens_kernel_impl(Tensor(a0!) output_token_ids, "
         "Tensor cu_num_draft_tokens, Tensor draft_token_ids, Tensor? draft_probs, "
         "Tensor target_probs, Tensor inv_q, SymInt vocab_size, bool no_draft_probs) -> ()",
         sample_recovered);
  define(m,
         "eagle_prepare_inputs_padded_kernel_impl(Tensor cu_num_draft_tokens, "
         "Tensor valid_sampled_tokens_count, Tensor query_start_loc_gpu, "
         "Tensor(a3!) token_indices_to_sample, Tensor(a4!) num_rejected_tokens_gpu, "
         "SymInt num_reqs) -> ()",
         eagle_inputs);
  define(m,
         "eagle_prepare_next_token_padded_kernel_impl(Tensor sampled_token_ids, "
         "Tensor discard_request_mask, Tensor backup_next_token_ids, Tensor(a3!) next_token_ids, "
         "Tensor(a4!) valid_sampled_tokens_count, SymInt vocab_size, "
         "SymInt num_sampled_tokens_per_req, SymInt num_reqs) -> ()",
         eagle_next_tokens);
  define(m,
         "eagle_step_slot_mapping_metadata_kernel_impl(Tensor positions, Tensor block_table, "
         "Tensor(a2!) seq_lens, Tensor(a3!) out_clamped_positions, Tensor(a4!) out_slot_mapping, "
         "SymInt block_size, SymInt max_model_len, SymInt PAD_ID) -> ()",
         eagle_step);
  define(m,
         "copy_and_expand_eagle_inputs_kernel_impl(Tensor target_token_ids, "
         "Tensor target_positions, Tensor next_token_ids, Tensor(a3!) out_input_ids, "
         "Tensor(a4!) out_positions, Tensor(a5!) out_is_rejected_token_mask, "
         "Tensor(a6!) out_is_masked_token_mask, Tensor(a7!) out_new_token_indices, "
         "Tensor(a8!) out_hidden_state_mapping, Tensor query_start_loc, Tensor query_end_loc, "
         "SymInt padding_token_id, SymInt parallel_drafting_token_id, SymInt total_input_tokens, "
         "SymInt num_padding_slots_per_request, bool shift_input_ids) -> ()",
         expand_eagle_inputs);
  define(m,
         "copy_and_expand_dflash_inputs_kernel_impl(Tensor next_token_ids, "
         "Tensor target_positions, Tensor(a2!) out_input_ids, Tensor(a3!) out_context_positions, "
         "Tensor(a4!) out_query_positions, Tensor(a5!) out_context_slot_mapping, "
         "Tensor(a6!) out_query_slot_mapping, Tensor(a7!) out_token_indices, Tensor block_table, "
         "Tensor query_start_loc, Tensor? num_rejected_tokens, SymInt parallel_drafting_token_id, "
         "SymInt block_size, SymInt num_query_per_req, SymInt num_speculative_tokens, "
         "SymInt total_input_tokens, bool has_num_rejected) -> ()",
         expand_dflash_inputs);
  define(m, "init_cpu_memory_env(SymInt[] node_ids) -> ()", init_cpu_memory_env, kNoDevice);

#if defined(CPU_BACKEND_COLLECTIVES)
  define(m, "init_shm_manager(str name, int group_size, int rank, int thread_num) -> int",
         init_shm_manager, kNoDevice);
  define(m, "join_shm_manager(int handle, str name) -> str", join_shm_manager, kNoDevice);
  define(m, "shm_allreduce(int handle, Tensor! data) -> ()", shm_allreduce);
  define(m, "shm_all_gather(int handle, Tensor data, Tensor! output) -> ()", shm_all_gather);
  define(m, "shm_gather(int handle, Tensor data, Tensor[](a!)? outputs, int dst) -> ()",
         shm_gather);
  define(m, "shm_send_tensor_list(int handle, Tensor[](a) tensor_list, int dst) -> ()",
         shm_send_tensor_list, kNoDevice);
  define(m, "shm_recv_tensor_list(int handle, int src) -> Tensor[](a)", shm_recv_tensor_list,
         kNoDevice);
#endif
}

TORCH_LIBRARY(cpu_backend, m) {
  m.class_<StepRecording>("StepRecording")
      .def(torch::init<std::vector<at::Tensor>, std::vector<at::Tensor>, std::vector<at::Tensor>>())
      .def("open", &StepRecording::open)
      .def("close", &StepRecording::close)
      .def("error", [](const c10::intrusive_ptr<StepRecording>& self) { return self->error(); })
      .def("fail", [](const c10::intrusive_ptr<StepRecording>& self,
                      const std::string& reason) { self->fail(reason); })
      .def("fill_with_garbage",
           [](const c10::intrusive_ptr<StepRecording>& self) { self->fill_with_garbage(); })
      .def("size",
           [](const c10::intrusive_ptr<StepRecording>& self) {
             return static_cast<int64_t>(self->size());
           })
      .def("replay",
           [](const c10::intrusive_ptr<StepRecording>& self,
              const std::vector<at::Tensor>& step_data) { return self->replay(step_data); });
  m.def(
      "linear(Tensor x, int handle, int out_features, Tensor? bias, "
      "bool float_output) -> Tensor");
  m.impl("linear", torch::dispatch(c10::DispatchKey::CPU, linear));
  m.def("packed_rows(Tensor ids, int handle) -> Tensor");
  m.impl("packed_rows", torch::dispatch(c10::DispatchKey::CPU, packed_rows));
  m.def("keep_top_(Tensor! logits, Tensor? k, Tensor? p) -> ()");
  m.impl("keep_top_", torch::dispatch(c10::DispatchKey::CPU, keep_top));
  m.def(
      "sample_(Tensor! logits, Tensor temperature, Tensor? k, Tensor? p, Tensor? min_p, "
      "Tensor seeds) -> Tensor");
  m.impl("sample_", torch::dispatch(c10::DispatchKey::CPU, sample));
  m.def(
      "apply_penalties_(Tensor! logits, Tensor prompt, Tensor output, Tensor output_start, "
      "Tensor repetition, Tensor frequency, Tensor presence) -> ()");
  m.impl("apply_penalties_", torch::dispatch(c10::DispatchKey::CPU, apply_penalties));
  m.def(
      "look_up_drafts(Tensor tokens, Tensor lengths, int[] requests, int least, int most, "
      "int drafts, int max_length) -> Tensor");
  m.impl("look_up_drafts", torch::dispatch(c10::DispatchKey::CPU, look_up_drafts));
  m.def("pack_linear(Tensor weight, int parts) -> int");
  m.impl("pack_linear", torch::dispatch(c10::DispatchKey::CPU, pack_linear));
  m.def("linear_add(Tensor! residual, Tensor x, int handle, Tensor? bias) -> ()");
  m.impl("linear_add", torch::dispatch(c10::DispatchKey::CPU, linear_add));
  m.def("linear_act(Tensor! out, Tensor x, int handle, Tensor? bias, str activation) -> ()");
  m.impl("linear_act", torch::dispatch(c10::DispatchKey::CPU, linear_act));
  m.def(
      "linear_act_and_mul(Tensor! out, Tensor x, int handle, Tensor? bias, "
      "str activation) -> ()");
  m.impl("linear_act_and_mul", torch::dispatch(c10::DispatchKey::CPU, linear_act_and_mul));
  m.def("linear_heads(Tensor! out, Tensor x, int[] handles) -> ()");
  m.impl("linear_heads", torch::dispatch(c10::DispatchKey::CPU, linear_heads));
  m.def(
      "experts(Tensor! out, Tensor x, int[] gate_up, int[] down, Tensor? gate_up_bias, "
      "Tensor? down_bias, Tensor topk_weights, Tensor topk_ids, str activation) -> ()");
  m.impl("experts", torch::dispatch(c10::DispatchKey::CPU, experts));
  m.def(
      "state_scan(Tensor! out, Tensor! states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, "
      "Tensor? D, Tensor? z, Tensor? dt_bias, bool dt_softplus, Tensor query_start_loc, "
      "Tensor? slots, Tensor? has_initial_state, Tensor? accepted=None) -> ()");
  m.impl("state_scan", torch::dispatch(c10::DispatchKey::CPU, state_scan));
  m.def(
      "causal_conv(Tensor x, Tensor weight, Tensor? bias, Tensor! states, Tensor query_start_loc, "
      "Tensor slots, Tensor resumes, Tensor? accepted, bool silu) -> Tensor");
  m.impl("causal_conv", torch::dispatch(c10::DispatchKey::CPU, causal_conv));
  m.def(
      "gated_delta_rule(Tensor! out, Tensor query, Tensor key, Tensor value, Tensor a, Tensor b, "
      "Tensor a_log, Tensor dt_bias, Tensor! states, Tensor slots, Tensor resumes, "
      "Tensor query_start_loc, Tensor? accepted=None, float beta_range=1.) -> ()");
  m.impl("gated_delta_rule", torch::dispatch(c10::DispatchKey::CPU, gated_delta_rule));
  m.def("cache_keys(Tensor keys, Tensor! cache, Tensor slot_mapping) -> ()");
  m.impl("cache_keys", torch::dispatch(c10::DispatchKey::CPU, cache_keys));
  m.def("cache_rows(Tensor rows, Tensor! cache, Tensor slot_mapping) -> ()");
  m.impl("cache_rows", torch::dispatch(c10::DispatchKey::CPU, cache_rows));
  m.def(
      "choose_tokens(Tensor query, Tensor weights, Tensor key_cache, Tensor query_start_loc, "
      "Tensor seq_lens, Tensor block_table, float scale, Tensor! scores, Tensor! chosen) -> ()");
  m.impl("choose_tokens", torch::dispatch(c10::DispatchKey::CPU, choose_tokens));
  m.def(
      "sparse_attention(Tensor query, Tensor cache, Tensor! output, Tensor query_start_loc, "
      "Tensor seq_lens, Tensor block_table, Tensor chosen, float scale) -> ()");
  m.impl("sparse_attention", torch::dispatch(c10::DispatchKey::CPU, sparse_attention));
  m.def("gemma_rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()");
  m.impl("gemma_rms_norm", torch::dispatch(c10::DispatchKey::CPU, gemma_rms_norm));
  m.def(
      "fused_add_gemma_rms_norm(Tensor! input, Tensor! residual, Tensor weight, float epsilon) "
      "-> ()");
  m.impl("fused_add_gemma_rms_norm",
         torch::dispatch(c10::DispatchKey::CPU, fused_add_gemma_rms_norm));
  m.def(
      "gated_rms_norm(Tensor! out, Tensor input, Tensor gate, Tensor weight, float epsilon, "
      "bool gate_first, str activation) -> ()");
  m.impl("gated_rms_norm", torch::dispatch(c10::DispatchKey::CPU, gated_rms_norm));
  m.def(
      "layer_norm(Tensor! out, Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, "
      "float epsilon) -> ()");
  m.impl("layer_norm", torch::dispatch(c10::DispatchKey::CPU, layer_norm));
  m.def("lora_shrink(Tensor! y, Tensor x, Tensor weights, Tensor adapters, float scale) -> ()");
  m.impl("lora_shrink", torch::dispatch(c10::DispatchKey::CPU, lora_shrink));
  m.def("lora_expand(Tensor! y, Tensor x, Tensor weights, Tensor adapters) -> ()");
  m.impl("lora_expand", torch::dispatch(c10::DispatchKey::CPU, lora_expand));
  m.def("read_bytes(Tensor data) -> int");
  m.impl("read_bytes", torch::dispatch(c10::DispatchKey::CPU, read_bytes));
  m.def("multiply_adds(int steps) -> int", multiply_adds);
  m.def(
      "pack_quantized(Tensor codes, str order, int bits, int add, Tensor? table, int in_features, "
      "Tensor scales, Tensor? zeros, str zero_kind, Tensor? channels, int group, str activations, "
      "float static_scale, int static_zero, int parts) -> int");
  m.impl("pack_quantized", torch::dispatch(c10::DispatchKey::CPU, pack_quantized));
  m.def(
      "quantize_weight(Tensor weight, int bits, int group) -> (Tensor codes, Tensor scales, "
      "Tensor levels, float error)");
  m.impl("quantize_weight", torch::dispatch(c10::DispatchKey::CPU, quantize_weight));
  m.def("packed_bytes(int handle) -> int", packed_bytes);
  m.def("bind_threads(int[] cpus) -> bool", bind_threads);
  m.def("set_num_threads(int threads) -> ()", set_num_threads);
  m.def("bind_memory(int[] nodes) -> str", bind_memory);
  m.def("describe() -> str", describe);
#if defined(CPU_BACKEND_COLLECTIVES)
  m.def("abandon_groups() -> ()", abandon_groups);
#endif
}

}  // namespace cpu_backend

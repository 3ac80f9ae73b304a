"""The signatures under which the host calls the library, word for word."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

# The host's own declarations (its CPU library; the two marked lines: its CUDA library), with every
# spelling of a mutated argument written as `!`; of convolutions the states are mutated and x is
# not, which the host declares otherwise.
HOST = """
apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask, Tensor output_mask, \
Tensor repetition_penalties) -> ()
copy_and_expand_dflash_inputs_kernel_impl(Tensor next_token_ids, Tensor target_positions, \
Tensor! out_input_ids, Tensor! out_context_positions, Tensor! out_query_positions, \
Tensor! out_context_slot_mapping, Tensor! out_query_slot_mapping, Tensor! out_token_indices, \
Tensor block_table, Tensor query_start_loc, Tensor? num_rejected_tokens, \
SymInt parallel_drafting_token_id, SymInt block_size, SymInt num_query_per_req, \
SymInt num_speculative_tokens, SymInt total_input_tokens, bool has_num_rejected) -> ()
copy_and_expand_eagle_inputs_kernel_impl(Tensor target_token_ids, Tensor target_positions, \
Tensor next_token_ids, Tensor! out_input_ids, Tensor! out_positions, \
Tensor! out_is_rejected_token_mask, Tensor! out_is_masked_token_mask, \
Tensor! out_new_token_indices, Tensor! out_hidden_state_mapping, Tensor query_start_loc, \
Tensor query_end_loc, SymInt padding_token_id, SymInt parallel_drafting_token_id, \
SymInt total_input_tokens, SymInt num_padding_slots_per_request, bool shift_input_ids) -> ()
eagle_prepare_inputs_padded_kernel_impl(Tensor cu_num_draft_tokens, \
Tensor valid_sampled_tokens_count, Tensor query_start_loc_gpu, Tensor! token_indices_to_sample, \
Tensor! num_rejected_tokens_gpu, SymInt num_reqs) -> ()
eagle_prepare_next_token_padded_kernel_impl(Tensor sampled_token_ids, \
Tensor discard_request_mask, Tensor backup_next_token_ids, Tensor! next_token_ids, \
Tensor! valid_sampled_tokens_count, SymInt vocab_size, SymInt num_sampled_tokens_per_req, \
SymInt num_reqs) -> ()
eagle_step_slot_mapping_metadata_kernel_impl(Tensor positions, Tensor block_table, \
Tensor! seq_lens, Tensor! out_clamped_positions, Tensor! out_slot_mapping, SymInt block_size, \
SymInt max_model_len, SymInt PAD_ID) -> ()
expand_kernel_impl(Tensor! output, Tensor input, Tensor cu_num_tokens, SymInt replace_from, \
SymInt replace_to) -> ()
rejection_greedy_sample_kernel_impl(Tensor! output_token_ids, Tensor cu_num_draft_tokens, \
Tensor draft_token_ids, Tensor target_argmax, Tensor bonus_token_ids, Tensor? is_greedy, \
SymInt max_spec_len) -> ()
rejection_random_sample_kernel_impl(Tensor! output_token_ids, Tensor cu_num_draft_tokens, \
Tensor draft_token_ids, Tensor? draft_probs, Tensor target_probs, Tensor bonus_token_ids, \
Tensor recovered_token_ids, Tensor uniform_probs, Tensor? is_greedy, SymInt max_spec_len, \
SymInt vocab_size, bool no_draft_probs) -> ()
sample_recovered_tokens_kernel_impl(Tensor! output_token_ids, Tensor cu_num_draft_tokens, \
Tensor draft_token_ids, Tensor? draft_probs, Tensor target_probs, Tensor inv_q, \
SymInt vocab_size, bool no_draft_probs) -> ()
causal_conv1d_fwd_cpu(Tensor x, Tensor weight, Tensor? bias, Tensor!? conv_states, \
Tensor? query_start_loc, Tensor? cache_indices, Tensor? has_initial_state, bool silu_activation, \
int pad_slot_id, bool is_weight_packed) -> Tensor
causal_conv1d_update_cpu(Tensor x, Tensor! conv_states, Tensor weight, Tensor? bias, \
bool silu_activation, Tensor? num_accepted_tokens, Tensor? conv_state_indices, int pad_slot_id, \
bool is_weight_packed) -> Tensor
causal_conv1d_update_cpu_vec(Tensor x, Tensor! conv_state, Tensor weight, Tensor? bias, \
str? activation, Tensor? conv_state_indices, Tensor? query_start_loc, SymInt pad_slot_id) -> Tensor
causal_conv1d_weight_pack(Tensor weight) -> Tensor
chunk_gated_delta_rule_cpu(Tensor query, Tensor key, Tensor value, Tensor g, Tensor beta, \
Tensor initial_state, bool output_final_state, Tensor cu_seqlens, bool head_first, \
bool use_qk_l2norm_in_kernel, Tensor initial_state_indices, float eps=1.0000000000000001e-05) \
-> (Tensor, Tensor)
compute_slot_mapping_kernel_impl(Tensor query_start_loc, Tensor positions, Tensor block_table, \
Tensor! slot_mapping, SymInt block_size) -> ()
cpu_attention_with_kv_cache(Tensor query, Tensor key_cache, Tensor value_cache, Tensor! output, \
Tensor query_start_loc, Tensor seq_lens, float scale, bool causal, Tensor? alibi_slopes, \
SymInt sliding_window_size, Tensor block_table, float softcap, Tensor scheduler_metadata, \
Tensor? s_aux, Tensor? dynamic_causal, float k_scale=1., float v_scale=1., \
str kv_cache_dtype="auto") -> ()
cpu_attn_reshape_and_cache(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache, \
Tensor slot_mapping, str isa, float k_scale=1., float v_scale=1., str kv_cache_dtype="auto") -> ()
create_onednn_mm_handler(Tensor b, int primitive_cache_size) -> int
create_onednn_scaled_mm_handler(Tensor b, Tensor b_scales, ScalarType output_type, \
bool dynamic_act_quant, bool use_azp, int primitive_cache_size) -> int
dynamic_scaled_int8_quant(Tensor! out, Tensor input, Tensor! scale, Tensor!? azp) -> ()
fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()
fused_gumbel_argmax(Tensor logits, Tensor seeds) -> Tensor
fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)
fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, \
Tensor v, Tensor a, Tensor b, Tensor! initial_state_source, Tensor initial_state_indices, \
Tensor cu_seqlens, bool use_qk_l2norm_in_kernel, float softplus_beta=1., \
float softplus_threshold=20.) -> Tensor
fused_sigmoid_gating_delta_rule_update_spec_cpu(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k, \
Tensor v, Tensor a, Tensor b, Tensor! initial_state_source, Tensor spec_state_indices, \
Tensor num_accepted_tokens, Tensor cu_seqlens, bool use_qk_l2norm_in_kernel, \
float softplus_beta=1., float softplus_threshold=20.) -> Tensor
gelu_and_mul(Tensor! out, Tensor input) -> ()
gelu_fast(Tensor! out, Tensor input) -> ()
gelu_new(Tensor! out, Tensor input) -> ()
gelu_quick(Tensor! out, Tensor input) -> ()
gelu_tanh(Tensor! out, Tensor input) -> ()
gelu_tanh_and_mul(Tensor! out, Tensor input) -> ()
get_scheduler_metadata(int num_req, int num_heads_q, int num_heads_kv, int head_dim, \
Tensor seq_lens, ScalarType dtype, Tensor query_start_loc, bool casual, int window_size, \
str isa_hint, bool enable_kv_split, Tensor? dynamic_causal, str kv_cache_dtype="auto") -> Tensor
greedy_argmax(Tensor logits) -> Tensor
init_cpu_memory_env(SymInt[] node_ids) -> ()
init_shm_manager(str name, int group_size, int rank, int thread_num) -> int
is_onednn_acl_supported() -> bool
join_shm_manager(int handle, str name) -> str
mamba_chunk_scan_fwd_cpu(Tensor! out, Tensor! final_states, Tensor x, Tensor dt, Tensor A, \
Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor cu_seqlens) -> ()
mul_and_silu(Tensor! out, Tensor input) -> ()
onednn_mm(Tensor! c, Tensor a, Tensor? bias, Tensor handler_tensor) -> ()
onednn_scaled_mm(Tensor! c, Tensor a, Tensor a_scales, Tensor? azp, Tensor? azp_adj, \
Tensor? bias, Tensor handler_tensor) -> ()
release_dnnl_matmul_handler(int handler) -> ()
rms_norm(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()
rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, \
Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()
selective_scan_fwd(Tensor! u, Tensor! delta, Tensor! A, Tensor! B, Tensor! C, Tensor? D_, \
Tensor!? z_, Tensor? delta_bias_, bool delta_softplus, Tensor? query_start_loc, \
Tensor? cache_indices, Tensor? has_initial_state, Tensor! ssm_states, int null_block_id, \
int block_size, Tensor? block_idx_first_scheduled_token, Tensor? block_idx_last_scheduled_token, \
Tensor? initial_state_idx, Tensor? cu_chunk_seqlen, Tensor? last_chunk_indices) -> ()
selective_state_update_cpu(Tensor! state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, \
Tensor? D, Tensor? z, Tensor? dt_bias, bool dt_softplus, Tensor? state_batch_indices, \
Tensor? dst_state_batch_indices, SymInt null_block_id, Tensor! out, Tensor? num_accepted_tokens, \
Tensor? cu_seqlens) -> ()
shm_all_gather(int handle, Tensor data, Tensor! output) -> ()
shm_allreduce(int handle, Tensor! data) -> ()
shm_gather(int handle, Tensor data, Tensor[]!? outputs, int dst) -> ()
shm_recv_tensor_list(int handle, int src) -> Tensor[](a)
shm_send_tensor_list(int handle, Tensor[](a) tensor_list, int dst) -> ()
silu_and_mul(Tensor! out, Tensor input) -> ()
static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()
static_scaled_int8_quant(Tensor! out, Tensor input, Tensor scale, Tensor? azp) -> ()
"""
OWN = """
abandon_groups() -> ()
apply_penalties_(Tensor! logits, Tensor prompt, Tensor output, Tensor output_start, \
Tensor repetition, Tensor frequency, Tensor presence) -> ()
bind_memory(int[] nodes) -> str
bind_threads(int[] cpus) -> bool
describe() -> str
experts(Tensor! out, Tensor x, int[] gate_up, int[] down, Tensor? gate_up_bias, \
Tensor? down_bias, Tensor topk_weights, Tensor topk_ids, str activation) -> ()
gated_delta_rule(Tensor! out, Tensor query, Tensor key, Tensor value, Tensor a, Tensor b, \
Tensor a_log, Tensor dt_bias, Tensor! states, Tensor slots, Tensor resumes, \
Tensor query_start_loc) -> ()
keep_top_(Tensor! logits, Tensor? k, Tensor? p) -> ()
linear(Tensor x, int handle, int out_features, Tensor? bias, bool float_output) -> Tensor
linear_act_and_mul(Tensor! out, Tensor x, int handle, Tensor? bias, str activation) -> ()
linear_add(Tensor! residual, Tensor x, int handle, Tensor? bias) -> ()
linear_heads(Tensor! out, Tensor x, int[] handles) -> ()
look_up_drafts(Tensor tokens, Tensor lengths, int[] requests, int least, int most, int drafts, \
int max_length) -> Tensor
multiply_adds(int steps) -> int
pack_linear(Tensor weight, int parts) -> int
pack_quantized(Tensor codes, str order, int bits, int add, int in_features, Tensor scales, \
Tensor? zeros, str zero_kind, Tensor? channels, int group, str activations, \
float static_scale, int static_zero) -> int
packed_bytes(int handle) -> int
packed_rows(Tensor ids, int handle) -> Tensor
quantize_weight(Tensor weight, int bits, int group) -> (Tensor codes, Tensor scales, \
Tensor levels, float error)
read_bytes(Tensor data) -> int
sample_(Tensor! logits, Tensor temperature, Tensor? k, Tensor? p, Tensor? min_p, Tensor seeds) \
-> Tensor
set_num_threads(int threads) -> ()
state_scan(Tensor! out, Tensor! states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, \
Tensor? D, Tensor? z, Tensor? dt_bias, bool dt_softplus, Tensor query_start_loc, Tensor? slots, \
Tensor? has_initial_state) -> ()
"""

# A process of its own: the host's libraries, once imported, add their ops to the same namespace.
LIST_OPS = """
import json, torch
from cpu_backend import ops
ops.load()
names = [n.split("::") for n in torch._C._dispatch_get_all_op_names()]
print(json.dumps({
    library: [
        str(getattr(getattr(torch.ops, library), name).default._schema)
        for space, name in sorted(names) if space == library
    ]
    for library in ("_C", "cpu_backend")
}))
"""


def registered() -> dict[str, list[str]]:
    run = subprocess.run([sys.executable, "-c", LIST_OPS], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    result: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def schemas() -> dict[str, list[str]]:
    return registered()


def normal(schema: str) -> str:
    """Without the library's name, and with aliases spelled `!`."""
    return re.sub(r"\([a$]\w*!( -> )?\)", "!", schema.partition("::")[2])


def by_name(text: str) -> dict[str, str]:
    return {line.partition("(")[0]: line for line in text.strip().splitlines()}


@pytest.mark.parametrize("name", by_name(HOST))
def test_schema_is_the_hosts(name: str, schemas: dict[str, list[str]]) -> None:
    found = by_name("\n".join(map(normal, schemas["_C"])))
    assert found.get(name) == by_name(HOST)[name]


def test_ops_without_an_implementation_are_not_registered(schemas: dict[str, list[str]]) -> None:
    """Where an op is missing the host takes another path; a stub would be called."""
    assert {s.partition("::")[2].partition("(")[0] for s in schemas["_C"]} == set(by_name(HOST))


def test_own_ops_are_these(schemas: dict[str, list[str]]) -> None:
    assert [normal(s) for s in schemas["cpu_backend"]] == OWN.strip().splitlines()

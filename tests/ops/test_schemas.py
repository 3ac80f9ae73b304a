"""The signatures under which the host calls the library, word for word."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

# The host's own declarations (its CPU library; the two marked lines: its CUDA library), with every
# spelling of a mutated argument written as `!`.
HOST = """
apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask, Tensor output_mask, \
Tensor repetition_penalties) -> ()
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
mul_and_silu(Tensor! out, Tensor input) -> ()
onednn_mm(Tensor! c, Tensor a, Tensor? bias, Tensor handler_tensor) -> ()
onednn_scaled_mm(Tensor! c, Tensor a, Tensor a_scales, Tensor? azp, Tensor? azp_adj, \
Tensor? bias, Tensor handler_tensor) -> ()
release_dnnl_matmul_handler(int handler) -> ()
rms_norm(Tensor! out, Tensor input, Tensor? weight, float epsilon) -> ()
rotary_embedding(Tensor positions, Tensor! query, Tensor!? key, int head_size, \
Tensor cos_sin_cache, bool is_neox, int rope_dim_offset=0, bool inverse=False) -> ()
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
keep_top_(Tensor! logits, Tensor? k, Tensor? p) -> ()
linear(Tensor x, int handle, int out_features, Tensor? bias, bool float_output) -> Tensor
linear_act_and_mul(Tensor! out, Tensor x, int handle, Tensor? bias, str activation) -> ()
linear_add(Tensor! residual, Tensor x, int handle, Tensor? bias) -> ()
linear_heads(Tensor! out, Tensor x, int[] handles) -> ()
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

"""The signatures under which the host calls the library, word for word."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

# What the host's own CPU library declares, as torch prints it.
OPS_PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
HOST_OPS = Path(__file__).with_name("host_ops.txt")
# Ops that its CPU library lacks, or declares without arguments, as its CUDA library declares them.
OF_CUDA = """
apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask, Tensor output_mask, \
Tensor repetition_penalties) -> ()
dynamic_per_token_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale, \
Tensor? scale_ub) -> ()
dynamic_scaled_fp8_quant(Tensor! result, Tensor input, Tensor! scale) -> ()
mul_and_silu(Tensor! out, Tensor input) -> ()
relu_squared(Tensor! out, Tensor input) -> ()
selective_scan_fwd(Tensor! u, Tensor! delta, Tensor! A, Tensor! B, Tensor! C, Tensor? D_, \
Tensor!? z_, Tensor? delta_bias_, bool delta_softplus, Tensor? query_start_loc, \
Tensor? cache_indices, Tensor? has_initial_state, Tensor! ssm_states, int null_block_id, \
int block_size, Tensor? block_idx_first_scheduled_token, Tensor? block_idx_last_scheduled_token, \
Tensor? initial_state_idx, Tensor? cu_chunk_seqlen, Tensor? last_chunk_indices) -> ()
static_scaled_fp8_quant(Tensor! result, Tensor input, Tensor scale, int[]? group_shape=None) -> ()
"""
# Arguments that the host declares as written though they are read, and one the other way round.
DECLARED_OTHERWISE = {
    "causal_conv1d_fwd_cpu": ("Tensor? conv_states", "Tensor!? conv_states"),
    "causal_conv1d_update_cpu_vec": ("Tensor! x", "Tensor x"),
    "convert_scale_packed": ("Tensor! scale", "Tensor scale"),
    "convert_weight_packed": ("Tensor! weight", "Tensor weight"),
    "fp8_scaled_mm_cpu": (
        "Tensor! mat1, Tensor! mat2, Tensor! scales2",
        "Tensor mat1, Tensor mat2, Tensor scales2",
    ),
    "int4_scaled_mm_cpu": (
        "Tensor! x, Tensor! w, Tensor! w_zeros, Tensor! w_scales",
        "Tensor x, Tensor w, Tensor w_zeros, Tensor w_scales",
    ),
}
OWN = """
abandon_groups() -> ()
apply_penalties_(Tensor! logits, Tensor prompt, Tensor output, Tensor output_start, \
Tensor repetition, Tensor frequency, Tensor presence) -> ()
bind_memory(int[] nodes) -> str
bind_threads(int[] cpus) -> bool
cache_keys(Tensor keys, Tensor! cache, Tensor slot_mapping) -> ()
cache_rows(Tensor rows, Tensor! cache, Tensor slot_mapping) -> ()
causal_conv(Tensor x, Tensor weight, Tensor? bias, Tensor! states, Tensor query_start_loc, \
Tensor slots, Tensor resumes, Tensor? accepted, bool silu) -> Tensor
choose_tokens(Tensor query, Tensor weights, Tensor key_cache, Tensor query_start_loc, \
Tensor seq_lens, Tensor block_table, float scale, Tensor! scores, Tensor! chosen) -> ()
describe() -> str
experts(Tensor! out, Tensor x, int[] gate_up, int[] down, Tensor? gate_up_bias, \
Tensor? down_bias, Tensor topk_weights, Tensor topk_ids, str activation) -> ()
fused_add_gemma_rms_norm(Tensor! input, Tensor! residual, Tensor weight, float epsilon) -> ()
gated_delta_rule(Tensor! out, Tensor query, Tensor key, Tensor value, Tensor a, Tensor b, \
Tensor a_log, Tensor dt_bias, Tensor! states, Tensor slots, Tensor resumes, \
Tensor query_start_loc, Tensor? accepted=None, float beta_range=1.) -> ()
gated_rms_norm(Tensor! out, Tensor input, Tensor gate, Tensor weight, float epsilon, \
bool gate_first, str activation) -> ()
gemma_rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon) -> ()
keep_top_(Tensor! logits, Tensor? k, Tensor? p) -> ()
layer_norm(Tensor! out, Tensor input, Tensor? residual, Tensor? weight, Tensor? bias, \
float epsilon) -> ()
linear(Tensor x, int handle, int out_features, Tensor? bias, bool float_output) -> Tensor
linear_act(Tensor! out, Tensor x, int handle, Tensor? bias, str activation) -> ()
linear_act_and_mul(Tensor! out, Tensor x, int handle, Tensor? bias, str activation) -> ()
linear_add(Tensor! residual, Tensor x, int handle, Tensor? bias) -> ()
linear_heads(Tensor! out, Tensor x, int[] handles) -> ()
look_up_drafts(Tensor tokens, Tensor lengths, int[] requests, int least, int most, int drafts, \
int max_length) -> Tensor
lora_expand(Tensor! y, Tensor x, Tensor weights, Tensor adapters) -> ()
lora_shrink(Tensor! y, Tensor x, Tensor weights, Tensor adapters, float scale) -> ()
multiply_adds(int steps) -> int
pack_linear(Tensor weight, int parts) -> int
pack_quantized(Tensor codes, str order, int bits, int add, Tensor? table, int in_features, \
Tensor scales, Tensor? zeros, str zero_kind, Tensor? channels, int group, str activations, \
float static_scale, int static_zero, int parts) -> int
packed_bytes(int handle) -> int
packed_rows(Tensor ids, int handle) -> Tensor
quantize_weight(Tensor weight, int bits, int group) -> (Tensor codes, Tensor scales, \
Tensor levels, float error)
read_bytes(Tensor data) -> int
sample_(Tensor! logits, Tensor temperature, Tensor? k, Tensor? p, Tensor? min_p, Tensor seeds) \
-> Tensor
set_num_threads(int threads) -> ()
sparse_attention(Tensor query, Tensor cache, Tensor! output, Tensor query_start_loc, \
Tensor seq_lens, Tensor block_table, Tensor chosen, float scale) -> ()
state_scan(Tensor! out, Tensor! states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, \
Tensor? D, Tensor? z, Tensor? dt_bias, bool dt_softplus, Tensor query_start_loc, Tensor? slots, \
Tensor? has_initial_state, Tensor? accepted=None) -> ()
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
    """Without the library's name; of aliases only what is written is kept, as `!`."""
    marked = re.sub(r"\([a$]\w*!( -> )?\)", "!", schema.partition("::")[2])
    return re.sub(r"(?<=Tensor)\(a\w*\)", "", marked)


def by_name(lines: list[str]) -> dict[str, str]:
    return {line.partition("(")[0]: line for line in lines}


def hosts() -> dict[str, str]:
    """What the host declares under each name."""
    declared = by_name([normal(line) for line in HOST_OPS.read_text().splitlines()])
    for name, (theirs, ours) in DECLARED_OTHERWISE.items():
        assert theirs in declared[name]
        declared[name] = declared[name].replace(theirs, ours)
    return declared | by_name(OF_CUDA.strip().splitlines())


def of_page(heading: str) -> set[str]:
    """The names in the first column of the table under a heading of docs/ops.md."""
    section = OPS_PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = re.findall(r"`(\w+)`", " ".join(rows))
    assert names
    assert len(names) == len(set(names))
    return set(names)


def test_schemas_are_the_hosts(schemas: dict[str, list[str]]) -> None:
    found = by_name([normal(schema) for schema in schemas["_C"]])
    assert found == {name: schema for name, schema in hosts().items() if name in found}


def test_the_page_of_ops_is_true(schemas: dict[str, list[str]]) -> None:
    """Where an op is missing the host takes another path; a stub would be called."""
    found = set(by_name([normal(schema) for schema in schemas["_C"]]))
    assert of_page("Registered") == found
    assert of_page("Not registered") == set(hosts()) - found


def test_own_ops_are_these(schemas: dict[str, list[str]]) -> None:
    assert [normal(s) for s in schemas["cpu_backend"]] == OWN.strip().splitlines()

"""The supported architectures: what their tensors are called here and there.

Without torch: the script that writes GGUF files for comparisons runs where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# GGUF tensor name within a block -> name within a layer.
COMMON_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}
LAYER_TENSORS = COMMON_TENSORS | {
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
ATTENTION_BIASES = {
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.bias": "self_attn.v_proj.bias",
}
HEAD_NORMS = {
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
}
# The experts of a layer are one tensor there, and one for each number {} here.
ROUTER = "ffn_gate_inp.weight"
MIXTRAL_EXPERTS = {
    ROUTER: "block_sparse_moe.gate.weight",
    "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.w1.weight",
    "ffn_up_exps.weight": "block_sparse_moe.experts.{}.w3.weight",
    "ffn_down_exps.weight": "block_sparse_moe.experts.{}.w2.weight",
}
QWEN_EXPERTS = {
    ROUTER: "mlp.gate.weight",
    "ffn_gate_exps.weight": "mlp.experts.{}.gate_proj.weight",
    "ffn_up_exps.weight": "mlp.experts.{}.up_proj.weight",
    "ffn_down_exps.weight": "mlp.experts.{}.down_proj.weight",
}
OUTER_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


@dataclass(frozen=True)
class Architecture:
    """What differs between the supported architectures."""

    class_name: str
    layer_tensors: dict[str, str]
    interleaved: bool = False  # rows of query and key projections
    config: tuple[tuple[str, Any], ...] = ()
    model_type: str = ""  # where it is not the name there
    num_experts: str = ""  # config.json's name for it in mixtures


ARCHITECTURES = {
    "llama": Architecture(
        "LlamaForCausalLM",
        LAYER_TENSORS,
        interleaved=True,
        config=(("attention_bias", False), ("mlp_bias", False)),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", LAYER_TENSORS | ATTENTION_BIASES),
    "qwen3": Architecture(
        "Qwen3ForCausalLM", LAYER_TENSORS | HEAD_NORMS, config=(("attention_bias", False),)
    ),
}
MIXTURES = {
    "llama": Architecture(
        "MixtralForCausalLM",
        COMMON_TENSORS | MIXTRAL_EXPERTS,
        interleaved=True,
        config=(("sliding_window", None),),
        model_type="mixtral",
        num_experts="num_local_experts",
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        COMMON_TENSORS | QWEN_EXPERTS | HEAD_NORMS,
        config=(
            ("attention_bias", False),
            ("decoder_sparse_step", 1),
            ("mlp_only_layers", ()),
            ("norm_topk_prob", True),
        ),
        model_type="qwen3_moe",
        num_experts="num_experts",
    ),
}

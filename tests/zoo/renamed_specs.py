"""Architectures that ``transformers`` has no class of its own for, but one that computes the same,
or the parts of one that the zoo makes: its weights are written as the published ones are, and its
config has what the host looks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.zoo.build import BASE, Spec

# MiniCPM's own words for what Granite multiplies by.
SCALES: dict[str, Any] = {
    "scale_emb": 12.0,
    "scale_depth": 1.4,
    "dim_model_base": 96,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 1.4 / BASE["num_hidden_layers"] ** 0.5,
    "logits_scaling": BASE["hidden_size"] / 96,
    "attention_multiplier": BASE["head_dim"] ** -0.5,
}
LING: dict[str, Any] = {
    "head_dim": BASE["head_dim"],
    "num_key_value_heads": 2,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    # The host's words.
    "use_rmsnorm": True,
    "num_experts": BASE["n_routed_experts"],
    "num_shared_experts": 1,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "use_bias": False,
    "use_qkv_bias": False,
    "embedding_dropout": 0.0,
}
LING_NAMES = (
    (r"embed_tokens", "word_embeddings"),
    (r"self_attn\.q_proj", "attention.query_key_value|0"),
    (r"self_attn\.k_proj", "attention.query_key_value|1"),
    (r"self_attn\.v_proj", "attention.query_key_value|2"),
    (r"self_attn\.o_proj", "attention.dense"),
    (r"self_attn\.q_norm", "attention.query_layernorm"),
    (r"self_attn\.k_norm", "attention.key_layernorm"),
    (r"gate\.e_score_correction_bias", "gate.expert_bias"),
)
LING_1: dict[str, Any] = {
    **{name: value for name, value in LING.items() if name not in ("n_group", "topk_group")},
    "use_qk_norm": False,
    "partial_rotary_factor": 1.0,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
    "score_function": "softmax",
    "moe_router_enable_expert_bias": False,
    "n_shared_experts": 2,
    "num_shared_experts": 2,
}
# Layers 0 and 2 attend linearly; heads that fill no vector, fewer groups of a norm than heads.
LING_2_5: dict[str, Any] = {
    **{name: value for name, value in LING.items() if name != "num_key_value_heads"},
    "num_hidden_layers": 4,
    "layer_group_size": 2,
    "head_dim": 40,
    "group_norm_size": 2,
    "linear_silu": False,
    "num_key_value_heads": BASE["num_attention_heads"],
    "q_lora_rank": 64,
    "kv_lora_rank": 72,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
}

INTERNLM2 = (
    (r"embed_tokens", "tok_embeddings"),
    (r"^lm_head", "output"),
    (r"self_attn\.q_proj", "attention.wqkv|0"),
    (r"self_attn\.k_proj", "attention.wqkv|1"),
    (r"self_attn\.v_proj", "attention.wqkv|2"),
    (r"self_attn\.o_proj", "attention.wo"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
)

CHATGLM = Spec(
    "ChatGLMModel",
    "ChatGLM 3, GLM-4-9B as first published",
    "glm",
    {
        "attention_bias": True,
        "add_qkv_bias": True,
        "add_bias_linear": False,
        "multi_query_attention": True,
        "multi_query_group_num": BASE["num_key_value_heads"],
        "kv_channels": BASE["head_dim"],
        "ffn_hidden_size": BASE["intermediate_size"],
        "num_layers": BASE["num_hidden_layers"],
        "padded_vocab_size": BASE["vocab_size"],
        "layernorm_epsilon": 1e-5,
        "rms_norm_eps": 1e-5,
        "rmsnorm": True,
        "original_rope": True,
        "post_layer_norm": True,
        "apply_residual_connection_post_layernorm": False,
        "fp32_residual_connection": False,
        "hidden_dropout": 0.0,
        "seq_length": BASE["max_position_embeddings"],
    },
    published=(
        (r"^model\.embed_tokens", "transformer.embedding.word_embeddings"),
        (r"^model\.layers", "transformer.encoder.layers"),
        (r"^model\.norm", "transformer.encoder.final_layernorm"),
        (r"^lm_head", "transformer.output_layer"),
        (r"self_attn\.q_proj", "self_attention.query_key_value|0"),
        (r"self_attn\.k_proj", "self_attention.query_key_value|1"),
        (r"self_attn\.v_proj", "self_attention.query_key_value|2"),
        (r"self_attn\.o_proj", "self_attention.dense"),
        (r"mlp\.gate_up_proj", "mlp.dense_h_to_4h"),
        (r"mlp\.down_proj", "mlp.dense_4h_to_h"),
    ),
    note="compared with GLM-4-9B, which computes the same",
)

SPECS = (
    Spec(
        "BailingMoeForCausalLM",
        "Ling 1",
        "bailing_moe",
        LING_1,
        auto="",
        published=(*LING_NAMES, (r".*gate\.expert_bias", "")),
        note="compared with GLM-4.5 and a router in plain torch",
    ),
    Spec(
        "BailingMoeV2ForCausalLM",
        "Ling 2.0",
        "glm4_moe",
        LING,
        published=LING_NAMES,
        note="compared with GLM-4.5, which computes the same",
    ),
    Spec(
        "BailingMoeV2_5ForCausalLM",
        "Ling 2.5, Ring 2.5",
        "bailing_hybrid",
        LING_2_5,
        auto="",
        published=(
            (r"embed_tokens", "word_embeddings"),
            (r"self_attn\.o_proj", "attention.dense"),
            (r"self_attn", "attention"),
            (r"gate\.e_score_correction_bias", "gate.expert_bias"),
        ),
        note="compared with DeepSeek V3's layers and a linear attention in plain torch, token by "
        "token, with the decay of each layer as the host has it; published code gives a layer that "
        "of the one before",
    ),
    CHATGLM,
    replace(
        CHATGLM,
        name="ChatGLMForConditionalGeneration",
        models="ChatGLM 3, GLM-4-9B by their other name",
    ),
    Spec(
        "ExaoneForCausalLM",
        "EXAONE 3, 3.5 and Deep",
        "llama",
        {
            "num_layers": BASE["num_hidden_layers"],
            "layer_norm_epsilon": 1e-6,
            "rms_norm_eps": 1e-6,
            "activation_function": "silu",
        },
        published=(
            (r"^model\.embed_tokens", "transformer.wte"),
            (r"^model\.layers", "transformer.h"),
            (r"^model\.norm", "transformer.ln_f"),
            (r"input_layernorm", "ln_1"),
            (r"post_attention_layernorm", "ln_2"),
            (r"self_attn\.o_proj", "attn.attention.out_proj"),
            (r"self_attn", "attn.attention"),
            (r"mlp\.gate_proj", "mlp.c_fc_0"),
            (r"mlp\.up_proj", "mlp.c_fc_1"),
            (r"mlp\.down_proj", "mlp.c_proj"),
        ),
        note="compared with Llama, which computes the same",
    ),
    Spec(
        "InternLM2ForCausalLM",
        "InternLM 2 and 2.5",
        "llama",
        published=INTERNLM2,
        by_key_head=True,
        note="compared with Llama, which computes the same",
    ),
    Spec(
        "MiMoForCausalLM", "MiMo 7B", "qwen2", note="compared with Qwen 2, which computes the same"
    ),
    Spec(
        "MiniCPMForCausalLM",
        "MiniCPM 1, 2 and 4",
        "granite",
        SCALES,
        note="compared with Granite 3, which computes the same",
    ),
    Spec(
        "OrionForCausalLM",
        "Orion",
        "stablelm",
        {"partial_rotary_factor": 1.0, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5},
        note="compared with StableLM, which computes the same",
    ),
    Spec(
        "PanguEmbeddedForCausalLM",
        "openPangu Embedded",
        "llama",
        {"attention_bias": True, "rope_theta": 10000.0},
        note="compared with Llama, which computes the same",
    ),
)

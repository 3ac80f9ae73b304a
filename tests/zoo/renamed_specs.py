"""Architectures that ``transformers`` has no class of its own for, but one that computes the same,
or the parts of one that the zoo makes: its weights are written as the published ones are, and its
config has what the host looks for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.zoo.build import BASE, WINDOW, Spec

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

# Layers of different sizes; one has no attention, one nothing after it, one neither.
BLOCKS = [
    {"attention": attention, "ffn": feed_forward}
    for attention, feed_forward in (
        ({"no_op": False, "n_heads_in_group": 3}, {"no_op": False, "ffn_mult": 2.0}),
        ({"no_op": True}, {"no_op": False, "ffn_mult": 3.5}),
        ({"no_op": False, "n_heads_in_group": 6}, {"no_op": True}),
        ({"no_op": True}, {"no_op": True}),
        ({"no_op": False, "n_heads_in_group": 1}, {"no_op": False, "ffn_mult": 1.0}),
    )
]
# Linear layers of TeleChat 2 without the bias that Llama gives to all or none.
UNBIASED = (*(f"self_attn.{part}_proj" for part in "qkv"), "mlp.gate_proj", "mlp.up_proj")
MISTRAL_LARGE: dict[str, Any] = {
    "num_key_value_heads": BASE["num_attention_heads"],
    "q_lora_rank": 64,
    "kv_lora_rank": 72,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "head_dim": 64,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
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


def chunked_config(config: dict[str, Any]) -> dict[str, Any]:
    """With chunks, which ``transformers`` does not have, where it has windows."""
    types: dict[str, Any] = json.loads(
        json.dumps(config).replace("sliding_attention", "chunked_attention")
    )
    return types


def mistral_large_config(config: dict[str, Any]) -> dict[str, Any]:
    """What the host makes of Mistral's own, of one that ``transformers`` writes."""
    rope = config["rope_parameters"]
    del rope["partial_rotary_factor"], config["head_dim"]
    scaling = {
        "beta": rope.pop("llama_4_scaling_beta"),
        "original_max_position_embeddings": rope["original_max_position_embeddings"],
    }
    return {
        **config,
        "model_type": "deepseek_v3",
        "rope_parameters": {**rope, "mscale_all_dim": 1},
        "llama_4_scaling": scaling,
        "topk_method": None,
        "scoring_func": "softmax",
    }


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
        "DeciLMForCausalLM",
        "Llama Nemotron",
        "nemotron-nas",
        {"num_hidden_layers": len(BLOCKS), "block_configs": BLOCKS},
        auto="",
        note="compared with layers of Llama, some without attention or what follows it",
    ),
    Spec(
        "DeepseekForCausalLM",
        "DeepSeek MoE",
        "deepseek",
        {
            "head_dim": BASE["head_dim"],
            "partial_rotary_factor": 1.0,
            "first_k_dense_replace": 1,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
        },
        auto="",
        published=((r".*gate\.e_score_correction_bias", ""),),
        note="compared with GLM-4.5 and a router in plain torch",
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
        "ExaoneMoEForCausalLM",
        "K-EXAONE by its first name",
        "exaone_moe",
        {"num_hidden_layers": 4},
        note="compared with K-EXAONE, which computes the same",
    ),
    Spec(
        "IQuestLoopCoderForCausalLM",
        "IQuest-Coder Loop",
        "llama",
        {"loop_num": 3, "loop_window_size": WINDOW},
        auto="",
        note="compared with layers of Llama and their attention in plain torch",
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
        "MistralLarge3ForCausalLM",
        "Mistral Large 3",
        "mistral_large_3",
        MISTRAL_LARGE,
        auto="",
        published=(
            (r"^model\.", ""),
            (r"^embed_tokens", "tok_embeddings"),
            (r"^lm_head", "output"),
            (r"self_attn\.q_a_layernorm", "attention.q_a_norm"),
            (r"self_attn\.kv_a_layernorm", "attention.kv_a_norm"),
            (r"self_attn\.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
            (r"self_attn\.(q_a|q_b|kv_b|o)_proj", r"attention.w\1"),
            (r"input_layernorm", "attention_norm"),
            (r"post_attention_layernorm", "ffn_norm"),
            (r"mlp\.((shared_)?experts|gate\.)", r"\1"),
            (r"mlp\.", "feed_forward."),
            (r"gate_proj", "w1"),
            (r"down_proj", "w2"),
            (r"up_proj", "w3"),
        ),
        published_config=mistral_large_config,
        note="compared with Mistral 4, which computes the same",
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
    Spec(
        "Plamo3ForCausalLM",
        "PLaMo 3",
        "plamo3",
        {
            "query_pre_attn_scalar": BASE["head_dim"],
            "hidden_activation": "silu",
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "interleaved_sliding_window": [WINDOW, WINDOW, None],
        },
        auto="",
        published=(
            (r"^model\.layers", "model.layers.layers"),
            (r"self_attn\.q_proj", "mixer.qkv_proj|0"),
            (r"self_attn\.k_proj", "mixer.qkv_proj|1"),
            (r"self_attn\.v_proj", "mixer.qkv_proj|2"),
            (r"self_attn", "mixer"),
            (r"mlp\.gate_proj", "mlp.gate_up_proj|0"),
            (r"mlp\.up_proj", "mlp.gate_up_proj|1"),
            (r"input_layernorm", "pre_mixer_norm"),
            (r"post_attention_layernorm", "post_mixer_norm"),
            (r"pre_feedforward_layernorm", "pre_mlp_norm"),
            (r"post_feedforward_layernorm", "post_mlp_norm"),
        ),
        note="compared with layers of Gemma 3 with other norms",
    ),
    Spec(
        "Rnj1ForCausalLM",
        "Rnj-1",
        "gemma3_text",
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        published_config=chunked_config,
        refused="attends within chunks",
    ),
    Spec(
        "SolarForCausalLM",
        "Solar Pro",
        "llama",
        {
            "num_hidden_layers": 6,
            "bskcn_1": [1, 4],
            "bskcn_2": [2],
            "bskcn_3": [3, 5],
            "bskcn_4": [4],
            "bskcn_tv": [0.9, 0.8],
        },
        auto="",
        note="compared with layers of Llama and what skips some of them",
    ),
    Spec(
        "Step1ForCausalLM",
        "Step 1",
        "llama",
        {"num_attention_groups": BASE["num_key_value_heads"]},
        refused="square roots of distances",
    ),
    Spec(
        "TeleChat2ForCausalLM",
        "TeleChat 2",
        "llama",
        {
            "num_key_value_heads": BASE["num_attention_heads"],
            "attention_bias": True,
            "mlp_bias": True,
            "n_layer": BASE["num_hidden_layers"],
            "n_head": BASE["num_attention_heads"],
            "ffn_hidden_size": BASE["intermediate_size"],
            "layer_norm_epsilon": 1e-6,
            "rms_norm_eps": 1e-6,
        },
        published=(
            (rf".*({'|'.join(UNBIASED)})\.bias", ""),
            (r"^model\.embed_tokens", "transformer.word_embeddings"),
            (r"^model\.layers", "transformer.h"),
            (r"^model\.norm", "transformer.ln_f"),
            (r"self_attn\.q_proj", "self_attention.query"),
            (r"self_attn\.k_proj", "self_attention.key_value|0"),
            (r"self_attn\.v_proj", "self_attention.key_value|1"),
            (r"self_attn\.o_proj", "self_attention.dense"),
        ),
        by_key_head=True,
        reference={
            f"model.layers.{i}.{name}.bias": None
            for i in range(BASE["num_hidden_layers"])
            for name in UNBIASED
        },
        note="compared with Llama with biases after attention and at the end of a layer",
    ),
    Spec(
        "TeleFLMForCausalLM",
        "Tele-FLM",
        "granite",
        {
            "use_mup": True,
            "input_mult": 1.0,
            "output_mult": 2.0,
            "mup_scale_factor": 8.0,
            "embedding_multiplier": 1.0,
            "logits_scaling": 4.0,
            "attention_multiplier": BASE["head_dim"] ** -0.5,
        },
        note="compared with Granite 3, which computes the same; the host reads no input_mult",
    ),
)

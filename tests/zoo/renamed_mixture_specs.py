"""Mixtures of experts that ``transformers`` has no class of its own for, but one that computes the
same, or the parts of one that the zoo makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.zoo.build import BASE, Spec
from tests.zoo.latents import ODD_LATENT, YARN
from tests.zoo.renamed_specs import LING, LING_2_5, LING_NAMES

LATENT: dict[str, Any] = {
    **ODD_LATENT,
    "first_k_dense_replace": LING_2_5["first_k_dense_replace"],
}
SARVAM: dict[str, Any] = {
    **LATENT,
    "q_lora_rank": None,
    "n_group": 4,
    "topk_group": 2,
    **YARN,
    # The host's words.
    "num_experts": BASE["n_routed_experts"],
    "num_shared_experts": 1,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
}
PANGU_NAMES = (
    (r"gate\.e_score_correction_bias", "e_score_correction_bias"),
    (r"post_attention_layernorm", "pre_mlp_layernorm"),
    (r"self_attn\.after", "post_attention_layernorm"),
    (r"mlp\.after", "post_mlp_layernorm"),
)


def deepseek_yarn(config: dict[str, Any]) -> dict[str, Any]:
    """The host's word for what ``transformers`` does as YaRN for DeepSeek's models."""
    return {**config, "rope_parameters": {**YARN["rope_parameters"], "rope_type": "deepseek_yarn"}}


def mimo(config: dict[str, Any]) -> dict[str, Any]:
    """Published words for what each layer is."""
    full, sliding = (config["rope_parameters"][f"{kind}_attention"] for kind in ("full", "sliding"))
    return {
        **{name: value for name, value in config.items() if name != "rope_parameters"},
        "hybrid_layer_pattern": [int("sliding" in kind) for kind in config["layer_types"]],
        "moe_layer_freq": [int(kind == "sparse") for kind in config["mlp_layer_types"]],
        "layernorm_epsilon": config["rms_norm_eps"],
        "rope_theta": full["rope_theta"],
        "swa_rope_theta": sliding["rope_theta"],
        "partial_rotary_factor": full["partial_rotary_factor"],
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "swa_head_dim": config["head_dim"],
        "swa_v_head_dim": config["v_head_dim"],
        "sliding_window_size": config["sliding_window"],
        "add_swa_attention_sink_bias": True,
    }


def step(config: dict[str, Any]) -> dict[str, Any]:
    """Published words of Step 3.5, with what differs from layer to layer in lists."""
    kinds = config["layer_types"]
    ropes = [config["rope_parameters"][kind] for kind in kinds]
    sparse = [str(i) for i, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
    dropped = ("rope_parameters", "per_layer_config", "mlp_layer_types")
    return {
        **{name: value for name, value in config.items() if name not in dropped},
        "num_attention_groups": config["num_key_value_heads"],
        "moe_num_experts": config["n_routed_experts"],
        "moe_top_k": config["num_experts_per_tok"],
        "moe_layers_enum": ",".join(sparse),
        "moe_router_activation": "sigmoid",
        "use_head_wise_attn_gate": True,
        "rope_theta": [rope["rope_theta"] for rope in ropes],
        "partial_rotary_factors": [rope["partial_rotary_factor"] for rope in ropes],
        "rope_scaling": LLAMA3,
        "yarn_only_types": ["full_attention"],
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "num_attention_heads": config["num_sliding_attention_heads"],
            "num_attention_groups": config["num_key_value_heads"],
            "head_dim": config["head_dim"],
        },
    }


LIKE_FLASH = "compared with MiMo V2 Flash, which computes the same"
MIMO = Spec(
    "MiMoV2FlashForCausalLM",
    "MiMo V2 Flash",
    "mimo_v2_flash",
    {
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 48,
        "v_head_dim": 32,
        "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
        "n_group": 4,
        "topk_group": 2,
    },
    published=((r"self_attn\.sinks", "self_attn.attention_sink_bias"),),
    published_config=mimo,
)
SPECS = (
    Spec(
        "K2HorizonForCausalLM",
        "K2 Horizon",
        "k2_horizon",
        {
            "head_dim": BASE["head_dim"],
            "use_qk_norm": True,
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 2.5,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            # The host's words.
            "num_experts": BASE["n_routed_experts"],
            "num_shared_experts": 1,
            "mlp_only_layers": [0],
            "decoder_sparse_step": 1,
            "moe_gate_bias": True,
            "router_score_func": "sigmoid",
            "router_scaling_factor": 2.5,
            "layernorm_num_groups": 2,
            "rope_head_dim": 16,
            "query_key_norm": True,
            "attention_gate_func": "softplus",
            "mova_num_experts": 0,
        },
        auto="",
        published=((r"gate\.e_score_correction_bias", "gate.bias"),),
        note="compared with GLM-4.5 and an attention in plain torch; without experts of values, "
        "whose kernel the host has for GPUs only",
    ),
    Spec(
        "LongcatFlashNgramForCausalLM",
        "LongCat-Flash-Lite",
        "longcat_flash",
        {
            **LATENT,
            "num_layers": 2,
            # The host's words.
            "ngram_vocab_size_ratio": 2,
            "emb_split_num": 2,
            "emb_neighbor_num": 3,
        },
        refused="embeds n-grams",
    ),
    MIMO,
    replace(MIMO, name="MiMoV2ForCausalLM", models="MiMo V2", note=LIKE_FLASH),
    Spec(
        "NemotronHPuzzleForCausalLM",
        "Nemotron-H Puzzle",
        "nemotron_h_puzzle",
        {
            "mamba_num_heads": 6,
            "mamba_head_dim": 64,
            "n_groups": 2,
            "ssm_state_size": 20,
            "chunk_size": 32,
            "layers_block_type": ["linear_attention", "full_attention", "mlp", "mlp", "moe"],
            "sliding_window": None,
            "intermediate_sizes": [352, 352, 352, 176, 352],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 96,
            "moe_shared_expert_intermediate_size": 160,
            "moe_latent_size": 80,  # Nemotron 3 Super's
        },
        auto="",
        reference={"model.layers.0.mixer.time_step_limit": (0.0, float("inf"))},
        note="compared with Nemotron-H, whose layers are of different sizes, whose experts read "
        "latents",
    ),
    Spec(
        "PanguProMoEV2ForCausalLM",
        "openPangu Pro 2",
        "pangu_pro_moe_v2",
        {
            "head_dim": BASE["head_dim"],
            "partial_rotary_factor": 1.0,
            "routed_scaling_factor": 2.5,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            # The host's words.
            "sandwich_norm": True,
            "router_enable_expert_bias": True,
        },
        auto="",
        published=PANGU_NAMES,
        note="compared with GLM-4.5, with norms behind attention and experts, too; without sinks "
        "of attention, whose kernel the host has for GPUs only",
    ),
    Spec(
        "PanguUltraMoEForCausalLM",
        "openPangu Ultra",
        "pangu_ultra_moe",
        {
            **LATENT,
            "n_group": 1,
            "topk_group": 1,
            "rms_norm_eps": 1e-6,
            # The host's words.
            "sandwich_norm": True,
            "router_enable_expert_bias": True,
        },
        auto="",
        published=PANGU_NAMES,
        note="compared with DeepSeek V3, with norms behind attention and experts, too",
    ),
    Spec(
        "Param2MoEForCausalLM",
        "Param 2",
        "param2moe",
        {**LING, "partial_rotary_factor": 1.0, "num_shared_experts": 2, "n_shared_experts": 2},
        auto="",
        published=LING_NAMES,
        note="compared with GLM-4.5, which computes the same",
    ),
    Spec(
        "SarvamMLAForCausalLM",
        "Sarvam 105B",
        "sarvam_mla",
        SARVAM,
        auto="",
        published_config=deepseek_yarn,
        note="compared with DeepSeek V3, which computes the same",
    ),
    Spec(
        "SarvamMoEForCausalLM",
        "Sarvam 30B",
        "glm4_moe",
        {**LING, "partial_rotary_factor": 1.0},
        published=LING_NAMES,
        note="compared with GLM-4.5, which computes the same",
    ),
    Spec(
        "Step3p5ForCausalLM",
        "Step 3.5 Flash",
        "step3p5",
        {
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
            "num_sliding_attention_heads": 8,
            "mlp_layer_types": ["dense", *["sparse"] * 3],
            "share_expert_dim": 80,
            "moe_router_scaling_factor": 3.0,
            "swiglu_limits": [0.0, 0.0, 7.0, 7.0],  # the host knows no other
            "swiglu_limits_shared": [0.0, 0.0, 0.3, 0.5],
            "rope_parameters": {
                "full_attention": {
                    **LLAMA3,
                    "rope_theta": 500000.0,
                    "partial_rotary_factor": 0.5,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 1.0,
                },
            },
        },
        auto="",
        published_config=step,
        note="compared with Step 3.7's text, which computes the same",
    ),
    Spec(
        "Step3TextForCausalLM",
        "Step 3",
        "step3_text",
        {
            "head_dim": BASE["head_dim"],
            "num_key_value_heads": 1,
            "n_shared_experts": 1,
            "partial_rotary_factor": 1.0,
            "rms_norm_eps": 1e-6,
            # The host's words.
            "num_attention_groups": 1,
            "share_q_dim": 80,
            "share_expert_dim": BASE["moe_intermediate_size"],
            "moe_top_k": BASE["num_experts_per_tok"],
            "moe_num_experts": BASE["n_routed_experts"],
            "moe_layers_enum": "1,2",
            "norm_expert_weight": False,
            "max_position_embedding": BASE["max_position_embeddings"],
        },
        auto="",
        published=(
            (r"q_proj\.0", "q_proj"),
            (r"q_proj\.1", "inter_norm"),
            (r"q_proj\.2", "wq"),
            (r".*router_bias", ""),
        ),
        note="compared with GLM-4.5, with queries by way of a latent and another router",
    ),
)

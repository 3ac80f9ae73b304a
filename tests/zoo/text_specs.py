"""The architectures that generate text: one entry per class of the host, sorted by name."""

from __future__ import annotations

from typing import Any

from tests.zoo import delta_specs, newer_specs, renamed_mixture_specs, renamed_specs
from tests.zoo.build import BASE, EAGER, FOR_GPUS, WINDOW, Spec
from tests.zoo.latents import (
    CORRECTED,
    FEW_CHOSEN,
    GROUPED,
    LATENT,
    ODD_LATENT,
    WIDE_LATENT,
    YARN,
)
from tests.zoo.mistral import MINISTRAL

TIED: dict[str, Any] = {"tie_word_embeddings": True}
FOUR = {"num_hidden_layers": 4}  # so that a pattern of layers comes to its full attention
GRANITE = {
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.8,
    "embedding_multiplier": 1.5,
    "logits_scaling": 2.0,
}
SLIDING_TWICE = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
# The host's windows of Cohere's models are one token longer than those of transformers, as these
# models were trained according to its source.
COHERE_WINDOW: dict[str, Any] = {
    "reference": {"sliding_window": WINDOW + 1},
    "note": "compared with windows one token longer, which the host has on purpose",
}
# Mamba-2 layers with a state that fills no vector, in chunks shorter than the prompts.  There is
# one group of heads where transformers takes the norm of all groups at once, unlike the models'
# authors and the host.
MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 6,
    "mamba_d_head": 64,
    "mamba_n_groups": 2,
    "mamba_d_state": 20,
    "mamba_chunk_size": 32,
}
# Time steps of any size: transformers makes those of prompts no smaller than a
# limit, but not those of single tokens; neither the models' authors nor the host do.
NO_LIMIT = (0.0, float("inf"))
# As Qwen2.5-1M has it; within the first chunk it changes nothing.
ONE_CHUNK = {"chunk_size": 1024, "local_size": 16, "original_max_position_embeddings": 1024}
LFM2 = {"layer_types": ["conv", "full_attention", "conv"]}

OWN = (
    Spec(
        "AXK1ForCausalLM",
        "A.X K1",
        "axk1",
        {**LATENT, **GROUPED, "first_k_dense_replace": 0},
    ),
    Spec(
        "AfmoeForCausalLM",
        "Trinity",
        "afmoe",
        {
            **FOUR,
            "num_shared_experts": 1,
            "score_func": "sigmoid",
            "route_norm": True,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    Spec("ApertusForCausalLM", "Apertus", "apertus"),
    Spec("ArceeForCausalLM", "Arcee AFM", "arcee"),
    Spec("BloomForCausalLM", "BLOOM", "bloom", TIED, selected=True),
    Spec("CohereForCausalLM", "Command R", "cohere", {**TIED, "use_qk_norm": True}),
    Spec(
        "Cohere2ForCausalLM",
        "Command R7B, Command A",
        "cohere2",
        {**TIED, **FOUR},
        selected=True,
        **COHERE_WINDOW,
    ),
    Spec(
        "Cohere2MoeForCausalLM",
        "Cohere 2 mixtures",
        "cohere2_moe",
        {**TIED, **FOUR},
        **COHERE_WINDOW,
    ),
    Spec("CwmForCausalLM", "CWM", "cwm", {**FOUR, "layer_types": None}),
    Spec(
        "DbrxForCausalLM",
        "DBRX",
        "dbrx",
        {
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 1.5},
            "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 32, "moe_top_k": 3},
            "d_model": BASE["hidden_size"],  # its parts are made before other names are read
        },
    ),
    Spec(
        "DeepseekV2ForCausalLM",
        "DeepSeek V2",
        "deepseek_v2",
        {
            **LATENT,
            **GROUPED,
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "scoring_func": "softmax",
            "routed_scaling_factor": 2.0,
        },
    ),
    Spec(
        "DeepseekV3ForCausalLM",
        "DeepSeek V3, R1",
        "deepseek_v3",
        {**ODD_LATENT, **GROUPED, **YARN},
        selected=True,
    ),
    Spec(
        "DeepseekV32ForCausalLM",
        "DeepSeek V3.2",
        "deepseek_v32",
        {**ODD_LATENT, **GROUPED, **YARN, **FEW_CHOSEN},
        selected=True,
    ),
    Spec(
        "DeepseekV4ForCausalLM",
        "DeepSeek V4",
        "deepseek_v4",
        {"num_hidden_layers": 43},
        refused=FOR_GPUS,
        host="mlp_layer_types",
        note="the host cannot read the config that transformers writes",
    ),
    Spec("Ernie4_5ForCausalLM", "Ernie 4.5", "ernie4_5", TIED),
    Spec(
        "Ernie4_5_MoeForCausalLM",
        "Ernie 4.5 mixtures",
        "ernie4_5_moe",
        {"moe_layer_end_index": 2, "moe_num_shared_experts": 1},
        selected=True,
    ),
    Spec("Exaone4ForCausalLM", "EXAONE 4", "exaone4", FOUR),
    Spec("ExaoneMoeForCausalLM", "K-EXAONE", "exaone_moe", FOUR),
    Spec(
        "FalconForCausalLM",
        "Falcon",
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        selected=True,
    ),
    Spec("FalconH1ForCausalLM", "Falcon-H1", "falcon_h1", {**MAMBA2, "mamba_d_ssm": 384}),
    Spec("FalconMambaForCausalLM", "Falcon Mamba", "falcon_mamba", uncached=True),
    Spec("FlexOlmoForCausalLM", "FlexOlmo", "flex_olmo"),
    Spec("GemmaForCausalLM", "Gemma 1", "gemma", TIED),
    Spec(
        "Gemma2ForCausalLM",
        "Gemma 2",
        "gemma2",
        {**TIED, **EAGER, "query_pre_attn_scalar": 48},
        selected=True,
    ),
    Spec(
        "Gemma3ForCausalLM",
        "Gemma 3",
        "gemma3_text",
        {**TIED, "query_pre_attn_scalar": 48, **SLIDING_TWICE},
    ),
    Spec(
        "Gemma3nForCausalLM",
        "Gemma 3n",
        "gemma3n_text",
        {
            **TIED,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "intermediate_size": [352] * 4,
            "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
            "num_kv_shared_layers": 2,
            "vocab_size_per_layer_input": 1000,
            "hidden_size_per_layer_input": 32,
            "laurel_rank": 16,
        },
    ),
    Spec(
        "Gemma4ForCausalLM",
        "Gemma 4",
        "gemma4_text",
        {
            **TIED,
            **FOUR,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "vocab_size_per_layer_input": 1000,
            "hidden_size_per_layer_input": 32,
            "per_layer_config": {
                layer: {"head_dim": 64, "num_key_value_heads": 1} for layer in "13"
            },
        },
    ),
    Spec("GlmForCausalLM", "GLM-4-9B", "glm"),
    Spec("Glm4ForCausalLM", "GLM-4-0414", "glm4"),
    Spec(
        "Glm4MoeForCausalLM",
        "GLM-4.5",
        "glm4_moe",
        {"use_qk_norm": True, "head_dim": 32, "routed_scaling_factor": 2.5},
    ),
    Spec(
        "Glm4MoeLiteForCausalLM",
        "GLM-4.7-Flash",
        "glm4_moe_lite",
        {**WIDE_LATENT, **CORRECTED, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
    Spec(
        "GlmMoeDsaForCausalLM",
        "GLM-5",
        "glm_moe_dsa",
        # The third layer attends to what the second one's indexer has chosen.
        {
            **FOUR,
            **WIDE_LATENT,
            **CORRECTED,
            **FEW_CHOSEN,
            "index_head_dim": 80,
            "index_topk_freq": 2,
            "indexer_rope_interleave": True,
        },
    ),
    Spec("GPT2LMHeadModel", "GPT-2", "gpt2", TIED),
    Spec("GPTBigCodeForCausalLM", "StarCoder", "gpt_bigcode", {**TIED, "num_key_value_heads": 1}),
    Spec("GPTJForCausalLM", "GPT-J", "gptj", {"rotary_dim": 16}),
    Spec("GPTNeoXForCausalLM", "Pythia, GPT-NeoX", "gpt_neox", selected=True),
    Spec("GptOssForCausalLM", "gpt-oss", "gpt_oss", selected=True),
    Spec("GraniteForCausalLM", "Granite 3", "granite", GRANITE, selected=True),
    Spec(
        "GraniteMoeForCausalLM", "Granite 3 MoE", "granitemoe", {**GRANITE, "intermediate_size": 96}
    ),
    Spec(
        "GraniteMoeHybridForCausalLM",
        "Granite 4",
        "granitemoehybrid",
        {
            **GRANITE,
            **MAMBA2,
            "mamba_n_groups": 1,
            "intermediate_size": 96,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        selected=True,
    ),
    Spec(
        "GraniteMoeSWAForCausalLM",
        "Granite MoE with windows",
        "granitemoe_swa",
        {**GRANITE, "intermediate_size": 96},
    ),
    Spec(
        "GraniteMoeSharedForCausalLM",
        "Granite MoE with shared experts",
        "granitemoeshared",
        {**GRANITE, "intermediate_size": 96},
    ),
    Spec("GraniteSWAForCausalLM", "Granite with windows", "granite_swa", GRANITE),
    Spec(
        "HYV3ForCausalLM",
        "Hunyuan 3",
        "hy_v3",
        {"first_k_dense_replace": 1, "expert_hidden_dim": 96, "route_norm": True, "qk_norm": True},
    ),
    Spec("HYV4ForCausalLM", "Hunyuan 4", "hy_v4", refused=FOR_GPUS),
    Spec(
        "HrmTextForCausalLM",
        "HRM-Text",
        "hrm_text",
        {"num_hidden_layers": 1, "L_cycles": 2},
        whole_prompts=True,
    ),
    Spec("HunYuanDenseV1ForCausalLM", "Hunyuan dense", "hunyuan_v1_dense"),
    Spec("HunYuanMoEV1ForCausalLM", "Hunyuan MoE", "hunyuan_v1_moe"),
    Spec("HyperCLOVAXForCausalLM", "HyperCLOVA X", "hyperclovax", GRANITE),
    Spec("InklingForCausalLM", "Inkling", "inkling_text", refused=FOR_GPUS),
    Spec("InternLM3ForCausalLM", "InternLM 3", "llama", note="loaded as a Llama"),
    Spec("IQuestCoderForCausalLM", "IQuest-Coder", "llama", note="loaded as a Llama"),
    Spec("Jais2ForCausalLM", "Jais 2", "jais2"),
    Spec(
        "JambaForCausalLM",
        "Jamba",
        "jamba",
        {"attn_layer_period": 2, "attn_layer_offset": 1, "intermediate_size": 96},
    ),
    Spec("LLaMAForCausalLM", "LLaMA 1", "llama", note="loaded as a Llama"),
    Spec("LagunaForCausalLM", "Laguna", "laguna", {**FOUR, "moe_routed_scaling_factor": 2.5}),
    Spec(
        "Lfm2ForCausalLM",
        "LFM2",
        "lfm2",
        {**TIED, **LFM2, "conv_dim": 192, "block_dim": 192},
    ),
    Spec(
        "Lfm2MoeForCausalLM",
        "LFM2 MoE",
        "lfm2_moe",
        {**TIED, **LFM2},
    ),
    Spec(
        "LlamaForCausalLM",
        "Llama 2 and 3, Yi, SmolLM2",
        "llama",
        {"attention_bias": True, "mlp_bias": True},
        selected=True,
    ),
    Spec(
        "Llama4ForCausalLM",
        "Llama 4",
        "llama4_text",
        {
            **FOUR,
            "attention_chunk_size": 128,
            "floor_scale": 64,  # where the scale of the queries begins
            "intermediate_size_mlp": 352,
            "intermediate_size": 96,
            "interleave_moe_layer_step": 2,
            "num_experts_per_tok": 1,
        },
        selected=True,
    ),
    Spec(
        "LongcatFlashForCausalLM",
        "LongCat-Flash",
        "longcat_flash",
        {
            **LATENT,
            "num_layers": 2,
            "ffn_hidden_size": 352,
            "expert_ffn_hidden_size": 96,
            "moe_topk": 3,
            "zero_expert_num": 8,
            "zero_expert_type": "identity",
            "mla_scale_q_lora": True,
            "mla_scale_kv_lora": True,
        },
        published=((r".*\.experts\.2\d\..*", ""),),  # transformers writes some for identities
    ),
    Spec("MambaForCausalLM", "Mamba", "mamba", selected=True, uncached=True),
    Spec(
        "Mamba2ForCausalLM",
        "Mamba 2",
        "mamba2",
        {"num_heads": 6, "head_dim": 64, "n_groups": 1, "state_size": 20, "chunk_size": 32},
        uncached=True,
    ),
    Spec("MellumForCausalLM", "Mellum", "mellum", FOUR),
    Spec(
        "MiniCPM3ForCausalLM",
        "MiniCPM 3",
        "minicpm3",
        {
            **TIED,
            "num_key_value_heads": 6,
            "q_lora_rank": 64,
            "kv_lora_rank": 48,
            "qk_nope_head_dim": 48,
            "qk_rope_head_dim": 32,
            "v_head_dim": 48,
        },
    ),
    Spec(
        "MiniMaxM2ForCausalLM",
        "MiniMax M2",
        "minimax_m2",
        {
            "intermediate_size": 96,
            "rotary_dim": 32,
            "use_qk_norm": True,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
        },
    ),
    Spec(
        "Ministral3ForCausalLM",
        "Ministral 3",
        "ministral3",
        {"rope_parameters": MINISTRAL},
        selected=True,
    ),
    Spec("MistralForCausalLM", "Mistral 7B", "mistral"),
    Spec("MixtralForCausalLM", "Mixtral", "mixtral", {"intermediate_size": 96}),
    Spec("NemotronForCausalLM", "Nemotron, Minitron", "nemotron"),
    Spec(
        "NemotronHForCausalLM",
        "Nemotron-H",
        "nemotron_h",
        {
            "mamba_num_heads": 6,
            "mamba_head_dim": 64,
            "n_groups": 2,
            "ssm_state_size": 20,
            "chunk_size": 32,
            "layers_block_type": [
                "linear_attention",
                "full_attention",
                "mlp",
                "moe",
                "linear_attention",
                "moe",
            ],
            "sliding_window": None,  # as published; transformers ignores it
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 96,
            "moe_shared_expert_intermediate_size": 160,
            "routed_scaling_factor": 2.5,
        },
        reference={f"model.layers.{i}.mixer.time_step_limit": NO_LIMIT for i in (0, 4)},
    ),
    Spec(
        "OPTForCausalLM", "OPT", "opt", {"ffn_dim": 352, "word_embed_proj_dim": 192}, selected=True
    ),
    Spec("OlmoForCausalLM", "OLMo 1", "olmo"),
    Spec("Olmo2ForCausalLM", "OLMo 2", "olmo2"),
    Spec("Olmo3ForCausalLM", "OLMo 3", "olmo3", FOUR),
    Spec("OlmoeForCausalLM", "OLMoE", "olmoe", {"intermediate_size": 96}),
    Spec("PhiForCausalLM", "Phi 1.5 and 2", "phi"),
    Spec("Phi3ForCausalLM", "Phi 3 and 4", "phi3"),
    Spec(
        "PhiMoEForCausalLM",
        "Phi 3.5 MoE",
        "phimoe",
        {
            "intermediate_size": 96,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "lm_head_bias": True,
        },
        selected=True,
    ),
    Spec(
        "Qwen2ForCausalLM",
        "Qwen 2 and 2.5",
        "qwen2",
        {**TIED, "use_sliding_window": True, "max_window_layers": 0},
        selected=True,
        published_config=lambda config: {**config, "dual_chunk_attention_config": ONE_CHUNK},
        note="Qwen2.5-1M for requests of up to 262,144 tokens",
    ),
    Spec("Qwen2MoeForCausalLM", "Qwen2 MoE", "qwen2_moe"),
    Spec("Qwen3ForCausalLM", "Qwen3", "qwen3"),
    Spec("Qwen3MoeForCausalLM", "Qwen3 MoE", "qwen3_moe"),
    Spec("SeedOssForCausalLM", "Seed-OSS", "seed_oss"),
    Spec("SmolLM3ForCausalLM", "SmolLM3", "smollm3", FOUR),
    Spec("StableLmForCausalLM", "StableLM", "stablelm", {"use_qkv_bias": True}),
    Spec("Starcoder2ForCausalLM", "StarCoder 2", "starcoder2"),
    Spec("TeleChat3ForCausalLM", "TeleChat 3", "llama", note="loaded as a Llama"),
    Spec(
        "VaultGemmaForCausalLM",
        "VaultGemma",
        "vaultgemma",
        {**TIED, **EAGER, "query_pre_attn_scalar": 48},
    ),
    Spec(
        "Zamba2ForCausalLM",
        "Zamba 2",
        "zamba2",
        {
            **TIED,
            **FOUR,
            "head_dim": 64,
            "num_key_value_heads": 6,
            "n_mamba_heads": 6,
            "mamba_ngroups": 2,
            "mamba_d_state": 20,
            "chunk_size": 32,
            "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        },
        reference={
            f"model.layers.{layer}.time_step_limit": NO_LIMIT
            for layer in ("0.mamba", "1.mamba_decoder.mamba", "2.mamba", "3.mamba_decoder.mamba")
        },
    ),
)
SPECS = (
    *OWN,
    *delta_specs.SPECS,
    *renamed_specs.SPECS,
    *renamed_mixture_specs.SPECS,
    *newer_specs.SPECS,
)

"""The architectures that generate text with gated delta nets, sorted by name."""

from __future__ import annotations

from tests.zoo.build import FOR_GPUS, Spec

# Every other layer a gated delta net, with heads that fill no vector and share keys.
GATED_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 40,
    "linear_value_head_dim": 24,
}
# The host cannot import the class without torchvision.

SPECS = (
    Spec(
        "KimiLinearForCausalLM",
        "Kimi Linear",
        "kimi_linear",
        {
            "num_key_value_heads": 6,
            "kv_lora_rank": 48,
            "qk_nope_head_dim": 48,
            "qk_rope_head_dim": 32,
            "v_head_dim": 48,
            "mla_use_nope": True,
            "first_k_dense_replace": 1,
            "linear_attn_config": {
                "num_heads": 6,
                "head_dim": 40,
                "short_conv_kernel_size": 4,
                "kda_layers": [1, 3],  # counted from 1
                "full_attn_layers": [2],
            },
        },
        # transformers writes a dense layer as if it were a mixture.
        published=((r"^(model\.layers\.0\.)block_sparse_moe", r"\1mlp"),),
    ),
    Spec(
        "OlmoHybridForCausalLM",
        "OLMo Hybrid",
        "olmo_hybrid",
        # As many channels of values as of keys: transformers writes a third of the convolution's
        # for each, whatever they have.
        {**GATED_DELTA, "linear_key_head_dim": 60, "linear_value_head_dim": 20},
    ),
    Spec("Qwen3NextForCausalLM", "Qwen3-Next", "qwen3_next", GATED_DELTA, selected=True),
    Spec("Qwen3_5ForCausalLM", "Qwen3.5", "qwen3_5_text", GATED_DELTA, needs=("torchvision",)),
    Spec(
        "Qwen3_5MoeForCausalLM",
        "Qwen3.5 MoE",
        "qwen3_5_moe_text",
        GATED_DELTA,
        needs=("torchvision",),
    ),
    Spec("Qwen4ExpForCausalLM", "Qwen4 preview", "qwen4_exp_text", refused=FOR_GPUS),
)

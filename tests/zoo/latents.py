"""Configs of latent attention, and of what comes with it, for Specs of several tables."""

from __future__ import annotations

from typing import Any

# Latents as wide as published ones have them, small ones, and some that fill no vector.
LATENT: dict[str, Any] = {
    "num_key_value_heads": 6,
    "q_lora_rank": 64,
    "kv_lora_rank": 48,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 32,
    "v_head_dim": 48,
    "head_dim": 32,
}
WIDE_LATENT = {**LATENT, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 64}
ODD_LATENT = {**LATENT, "kv_lora_rank": 72, "qk_rope_head_dim": 16, "head_dim": 16}
# As published configs say it, which transformers takes for granted.
CORRECTED = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "first_k_dense_replace": 1}
GROUPED = {**CORRECTED, "n_group": 4, "topk_group": 2}
# All but the shortest prompts have more tokens than an indexer chooses.
FEW_CHOSEN = {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 48}
YARN = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
}

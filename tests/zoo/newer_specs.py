"""Architectures of text that came to the host with 0.33."""

from __future__ import annotations

from typing import Any

from tests.zoo.build import WINDOW, Spec

NEEDS = ("vLLM 0.33",)
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0}


def of_each_kind(config: dict[str, Any]) -> dict[str, Any]:
    """Without the parameters for all layers that Llama's config adds."""
    both = config["rope_parameters"].items()
    return {**config, "rope_parameters": {kind: own for kind, own in both if kind not in ROPE}}


SPECS = (
    Spec(
        "DomynEdgeForCausalLM",
        "Domyn Edge",
        "domyn_edge",
        {
            "num_hidden_layers": 5,
            "position_layers": ["rope", "nope", "rope", "rope", "nope"],
            "window_sizes": [[WINDOW, 0], [-1, 0], [-1, 0], [WINDOW, 0], [WINDOW, 0]],
        },
        auto="",
        needs=NEEDS,
        note="compared with a model in plain torch",
    ),
    Spec(
        "DoryForCausalLM",
        "Dory",
        "dory",
        {
            # Of six halves the middle four run three times.
            "num_hidden_layers": 6,
            "layer_types": [
                "sliding_attention",
                "mlp",
                "full_attention",
                "mlp",
                "sliding_attention",
                "mlp",
            ],
            "n_input_layers": 1,
            "n_recurrent_layers": 4,
            "n_output_layers": 1,
            "n_recurrent_loops": 3,
            "recurrent_kv_cache_mode": "per_loop",
            "sliding_window": WINDOW,
            "rope_parameters": {
                "sliding_attention": {**ROPE, "partial_rotary_factor": 1.0},
                "full_attention": {
                    **ROPE,
                    "rope_theta": 200000.0,
                    "partial_rotary_factor": 0.5,
                },
            },
            # Larger than published, so that random numbers do not drown them.
            "initializer_range": 0.5,
            "ngpt_alpha_init": 0.5,
            "attention_output_gate_logit_scale_init": 14.0,
        },
        auto="",
        published_config=of_each_kind,
        needs=NEEDS,
        note="compared with a model in plain torch",
    ),
    Spec(
        "Kolibri1ForCausalLM",
        "Kolibri 1",
        "kolibri1",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "norm_topk_prob": True,
        },
        needs=NEEDS,
    ),
)

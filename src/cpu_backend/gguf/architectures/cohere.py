"""Cohere's Command models: one norm a layer, tied tables."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, SOFTMAX, Architecture, layer_types
from cpu_backend.gguf.architectures.routed import SHARED
from cpu_backend.gguf.architectures.tensors import ATTENTION, EXPERTS, MLP, Tensor

HEAD_NORMS = {
    "attn_q_norm.weight": Tensor(
        "self_attn.q_norm.weight", ("heads", "head"), plain=True, optional=True
    ),
    "attn_k_norm.weight": Tensor(
        "self_attn.k_norm.weight", ("groups", "head"), plain=True, optional=True
    ),
}


class Cohere(Architecture):
    """Command R and Aya; the larger ones with norms of heads."""

    class_name = "CohereForCausalLM"
    model_type = "cohere"
    epsilon = "layer_norm_epsilon"
    has_head = False

    def config(self) -> dict[str, Any]:
        config = super().config()
        epsilon = config.pop("rms_norm_eps")  # which would say that the norms have no mean
        if not config["tie_word_embeddings"]:
            raise self.refuse("has an output layer of its own")
        return config | {
            "attention_bias": False,
            "layer_norm_eps": epsilon,
            "logit_scale": self.number("logit_scale", 1.0),
            "use_qk_norm": self.present("attn_q_norm.weight"),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | MLP | HEAD_NORMS


class Cohere2(Cohere):
    """Command R7B and Command A: three layers with windows to one without positions."""

    class_name = "Cohere2ForCausalLM"
    model_type = "cohere2"

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "layer_types": layer_types(self.windowed(4)),
            "sliding_window": self.size("attention.sliding_window"),
            "use_qk_norm": False,
        }

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        if self.number("rope.freq_base_swa", config["rope_theta"]) != config["rope_theta"]:
            raise self.refuse("has another base of positions in its windows")
        return config

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | MLP


class Cohere2Moe(Cohere2):
    """Command's mixtures, the layers of which may be dense at first."""

    class_name = "Cohere2MoeForCausalLM"
    model_type = "cohere2_moe"

    def config(self) -> dict[str, Any]:
        gating = self.size("expert_gating_func", SIGMOID, least=0) or SIGMOID
        if gating not in (SOFTMAX, SIGMOID):
            raise self.refuse(f"chooses experts by the function {gating}")
        if self.weights_scale() != 1:
            raise self.refuse("scales the weights of experts")
        dense = self.dense_layers
        config = super().config() | self.experts()
        return config | {
            "expert_selection_fn": "softmax" if gating == SOFTMAX else "sigmoid",
            "first_k_dense_replace": dense,
            "intermediate_size": config.pop("moe_intermediate_size"),
            "mlp_layer_types": ["dense"] * dense + ["sparse"] * (self.num_layers - dense),
            "norm_topk_prob": self.flag("expert_weights_norm", False),
            "num_shared_experts": self.size("expert_shared_count", 0, least=0),
            "prefix_dense_intermediate_size": config["intermediate_size"],
            "shared_expert_combination_strategy": "average",
        }

    def intermediate_size(self) -> int:
        return self.size("feed_forward_length", self.expert_ffn())

    @property
    def dense_layers(self) -> int:
        """So many layers have no experts, and are the first."""
        return min(self.size("leading_dense_block_count", 0, least=0), self.num_layers)

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        return sizes | {
            "ffn": config["prefix_dense_intermediate_size"],
            "expert_ffn": config["intermediate_size"],
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        if number < self.dense_layers:
            return super().layer(number)
        shared = SHARED if self.size("expert_shared_count", 0, least=0) else {}
        return ATTENTION | EXPERTS | shared


KNOWN = {"command-r": Cohere, "cohere2": Cohere2, "cohere2moe": Cohere2Moe}

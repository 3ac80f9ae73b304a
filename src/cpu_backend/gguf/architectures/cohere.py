"""Cohere's Command models: one norm a layer, tied tables."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, Architecture, layer_types
from cpu_backend.gguf.architectures.routed import Routed
from cpu_backend.gguf.architectures.tensors import ATTENTION, MLP, Tensor
from cpu_backend.gguf.reader import GgufFile

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


class Cohere2Moe(Cohere2, Routed):
    """Cohere 2's mixtures; their first layers, which are dense, have positions and no windows."""

    class_name = "Cohere2MoeForCausalLM"
    model_type = "cohere2_moe"
    gating = SIGMOID

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self.without_mean = self.has("attention.layer_norm_rms_epsilon")
        if self.without_mean:
            self.epsilon = "layer_norm_rms_epsilon"

    def config(self) -> dict[str, Any]:
        config = super().config()
        if config["routed_scaling_factor"] != 1:
            raise self.refuse("scales the weights of experts")
        if config["scoring_func"] == "softmax" and not config["norm_topk_prob"]:
            raise self.refuse("has experts whose weights do not sum to 1")
        return config | {
            "expert_selection_fn": config["scoring_func"],
            "intermediate_size": config["moe_intermediate_size"],
            "mlp_layer_types": self.mlp_layer_types(),
            "num_experts": config["n_routed_experts"],
            "num_shared_experts": self.shared_experts,
            "prefix_dense_intermediate_size": config["intermediate_size"],
            "prefix_dense_sliding_window_pattern": 1,
            "rms_norm_eps": config["layer_norm_eps"] if self.without_mean else None,
            "shared_expert_combination_strategy": "average",
        }

    def intermediate_size(self) -> int:
        return self.size("feed_forward_length", self.expert_ffn())

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"ffn": config["prefix_dense_intermediate_size"]}

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | self.feed_forward(number)


KNOWN = {"command-r": Cohere, "cohere2": Cohere2, "cohere2moe": Cohere2Moe}

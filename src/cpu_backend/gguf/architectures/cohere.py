"""Cohere's Command models: one norm a layer, tied tables."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import Architecture, layer_types
from cpu_backend.gguf.architectures.tensors import ATTENTION, MLP, Tensor

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


KNOWN = {"command-r": Cohere, "cohere2": Cohere2}

"""OLMo 1 to 3 and OLMoE."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import Architecture, layer_types
from cpu_backend.gguf.architectures.llama import interleaved
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    EXPERTS,
    FFN_NORM,
    MLP,
    OUTER,
    Tensor,
    named,
)

# Norms of all heads at once.
NORMS = {
    "attn_q_norm.weight": Tensor("self_attn.q_norm.weight", ("queries",)),
    "attn_k_norm.weight": Tensor("self_attn.k_norm.weight", ("keys",)),
}
AFTER = named(
    {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    }
)


def without(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All but the tensor ``name``."""
    return {key: tensor for key, tensor in tensors.items() if key != name}


class Olmo(Architecture):
    """OLMo 1: norms without weights."""

    class_name = "OlmoForCausalLM"
    model_type = "olmo"
    epsilon = "layer_norm_epsilon"

    def config(self) -> dict[str, Any]:
        clip = "attention.clamp_kqv"
        limit = self.file.get(f"{self.name}.{clip}", (int, float), 0.0)
        config = super().config()
        if config["rms_norm_eps"] != 1e-5:
            raise self.refuse("has norms with another epsilon than 1e-5")
        return config | {
            "attention_bias": False,
            "clip_qkv": self.number(clip) if limit else None,
        }

    def outer(self) -> dict[str, Tensor]:
        return without("output_norm.weight", OUTER)

    def layer(self, number: int) -> dict[str, Tensor]:
        return interleaved(without("attn_norm.weight", ATTENTION)) | MLP


class Olmo2(Architecture):
    """OLMo 2 and 3: norms behind attention and dense layers; OLMo 3 has windows."""

    class_name = "Olmo2ForCausalLM"
    model_type = "olmo2"

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        if self.size("attention.sliding_window", 0, least=0):
            self.class_name, self.model_type = "Olmo3ForCausalLM", "olmo3"

    def config(self) -> dict[str, Any]:
        config = super().config() | {"attention_bias": False}
        if self.model_type == "olmo3":
            config["sliding_window"] = self.size("attention.sliding_window")
            config["layer_types"] = layer_types(self.windowed(4))
        return config

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        if self.model_type == "olmo2":
            return config
        theta = config["rope_theta"]
        if self.number("rope.freq_base_swa", theta) != theta:
            raise self.refuse("has another base of positions in its windows")
        # Only layers without windows stretch their positions.
        plain = {"rope_type": "default", "rope_theta": theta}
        full = {**plain, **(config["rope_scaling"] or {})}
        return {"rope_parameters": {"full_attention": full, "sliding_attention": plain}}

    def layer(self, number: int) -> dict[str, Tensor]:
        return without("attn_norm.weight", ATTENTION) | NORMS | AFTER | MLP


class Olmoe(Architecture):
    """OLMoE: experts in every layer."""

    class_name = "OlmoeForCausalLM"
    model_type = "olmoe"

    def config(self) -> dict[str, Any]:
        experts = self.experts()
        size = experts["moe_intermediate_size"]
        return (
            super().config()
            | experts
            | {
                "attention_bias": False,
                "clip_qkv": None,
                "intermediate_size": size,
                "norm_topk_prob": False,
            }
        )

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | NORMS | EXPERTS


KNOWN = {"olmo": Olmo, "olmo2": Olmo2, "olmoe": Olmoe}

"""MiMo V2, Step 3.5 and Laguna: mixtures whose layers with windows have heads of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import SIGMOID, layer_types
from cpu_backend.gguf.architectures.routed import CORRECTION, SHARED, Routed
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    FFN_NORM,
    HEAD_NORMS,
    OUTER,
    Tensor,
    centred,
    named,
    plain,
)
from cpu_backend.gguf.metadata import shortest_float

PARTS = ("gate", "up", "down")
STEP_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
    "original_max_position_embeddings": 131072,
}
GATE = {"attn_gate.weight": Tensor("self_attn.g_proj.weight", ("gates", "hidden"))}


class Alternating(Routed):
    """What they have in common."""

    gating = SIGMOID
    scoring = (SIGMOID,)

    @property
    def windows(self) -> list[bool]:
        """Whether each layer has a window."""
        if not self.has("attention.sliding_window_pattern"):
            raise self.refuse("does not say which of its layers have windows")
        return self.windowed(0)

    def of_kind(self, key: str, window: bool) -> int:
        """What all layers with windows have of ``key``, or all without."""
        counts = self.per_layer(key, least=1)
        found = {n for n, own in zip(counts, self.windows, strict=True) if own == window}
        if len(found) > 1:
            raise self.refuse(f"has layers of one kind with different numbers in '{key}'")
        return found.pop() if found else counts[0]

    @property
    def num_heads(self) -> int:
        return self.of_kind("attention.head_count", window=False)

    def kv_heads(self) -> int:
        return self.of_kind("attention.head_count_kv", window=False)

    def gates(self, heads: int) -> int:
        """Of a layer with so many heads."""
        return heads

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        window = layer >= 0 and self.windows[layer]
        heads = self.of_kind("attention.head_count", window)
        groups = self.of_kind("attention.head_count_kv", window)
        own = {"num_attention_heads": heads, "num_key_value_heads": groups}
        return super().sizes(layer, config | own) | {"gates": self.gates(heads)}


class MiMoV2(Alternating):
    """MiMo V2: values are shorter than keys, and layers with windows have sinks."""

    class_name = "MiMoV2FlashForCausalLM"
    model_type = "mimo_v2_flash"
    other_classes = ("MiMoV2ForCausalLM",)
    partial_rotary = True
    grouped = True

    @property
    def head_dim(self) -> int:
        return self.size("attention.key_length")

    @property
    def value_dim(self) -> int:
        """Of values."""
        return self.size("attention.value_length", self.head_dim)

    def sinks(self, layer: int) -> bool:
        """Whether a layer has them."""
        return self.windows[layer] and any(
            self.present("attn_sinks.weight", n) for n, own in enumerate(self.windows) if own
        )

    def config(self) -> dict[str, Any]:
        config = super().config()
        if config.pop("rope_scaling") or config["routed_scaling_factor"] != 1:
            raise self.refuse("scales its positions or the weights of experts")
        heads, window = config["num_attention_heads"], self.size("attention.sliding_window")
        if self.of_kind("attention.head_count", window=True) != heads:
            raise self.refuse("has layers with different numbers of heads")
        return config | {
            "add_swa_attention_sink_bias": any(map(self.sinks, range(self.num_layers))),
            "attention_bias": False,
            "attention_value_scale": self.number("attention.value_scale", 1.0),
            "hybrid_layer_pattern": [int(own) for own in self.windows],
            "layer_types": layer_types(self.windows),
            "layernorm_epsilon": config["rms_norm_eps"],
            "mlp_layer_types": self.mlp_layer_types(),
            "moe_layer_freq": [int(kind == "sparse") for kind in self.mlp_layer_types()],
            "norm_topk_prob": self.flag("expert_weights_norm", True),
            "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
            "sliding_window": window,
            "sliding_window_size": window,
            "swa_head_dim": self.head_dim,
            "swa_num_attention_heads": heads,
            "swa_num_key_value_heads": self.of_kind("attention.head_count_kv", window=True),
            "swa_rope_theta": self.number("rope.freq_base_swa", config["rope_theta"]),
            "swa_v_head_dim": self.value_dim,
            "v_head_dim": self.value_dim,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        values = {"values": sizes["groups"], "outputs": sizes["heads"]}
        return sizes | {name: count * self.value_dim for name, count in values.items()}

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number)
        if self.sinks(number):
            tensors |= {"attn_sinks.weight": Tensor("self_attn.attention_sink_bias")}
        return tensors if number < self.dense_layers else tensors | CORRECTION


class Step35(Alternating):
    """Step 3.5: norms around 0, gates of heads, activations that are cut off."""

    class_name = "Step3p5ForCausalLM"
    model_type = "step3p5"
    llama3_rope = STEP_ROPE

    @property
    def stretched(self) -> int:
        """Of layers without windows, which rotate half of each head."""
        return self.head_dim // 2

    def config(self) -> dict[str, Any]:
        config = super().config()
        if self.size("moe_every_n_layers", 1) != 1 or self.dense_layers == self.num_layers:
            raise self.refuse("has other layers with experts than all but the first")
        scaling = config["rope_scaling"]
        if scaling and scaling["rope_type"] != "llama3":
            raise self.refuse("scales its positions otherwise than Step 3.5")
        theta, windows = config["rope_theta"], self.windows
        own = self.number("rope.freq_base_swa", theta)
        return config | {
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "head_dim": config["head_dim"],
                "num_attention_groups": self.of_kind("attention.head_count_kv", window=True),
                "num_attention_heads": self.of_kind("attention.head_count", window=True),
            },
            "layer_types": layer_types(windows),
            "moe_layers_enum": ",".join(map(str, range(self.dense_layers, self.num_layers))),
            "moe_num_experts": config["n_routed_experts"],
            "moe_router_activation": "sigmoid",
            "moe_router_scaling_factor": config["routed_scaling_factor"],
            "moe_top_k": config["num_experts_per_tok"],
            "norm_expert_weight": config["norm_topk_prob"],
            "num_attention_groups": config["num_key_value_heads"],
            "partial_rotary_factors": [1.0 if window else 0.5 for window in windows],
            "rope_theta": [own if window else theta for window in windows],
            "share_expert_dim": self.size("expert_shared_feed_forward_length"),
            "sliding_window": self.size("attention.sliding_window"),
            "swiglu_limits": self.limits("exp", (0, 7)),  # the host knows no other
            "swiglu_limits_shared": self.limits("shexp"),
            "use_head_wise_attn_gate": self.present("attn_gate.weight"),
            "yarn_only_types": ["full_attention"],
        }

    def limits(self, of: str, known: tuple[int, ...] = ()) -> list[float]:
        """Where the activations of each layer are cut off, 0 for nowhere."""
        key = self.field(f"swiglu_clamp_{of}")
        found = self.file.metadata.get(key, np.zeros(self.num_layers))
        if not isinstance(found, np.ndarray) or len(found) < self.num_layers:
            raise self.file.error(f"has a field '{key}' of another type than expected")
        limits = [shortest_float(value) for value in found[: self.num_layers]]
        if not all(0 <= limit < np.inf and (not known or limit in known) for limit in limits):
            raise self.refuse(f"has {limits} in the field '{key}'")
        return limits

    def outer(self) -> dict[str, Tensor]:
        return centred(OUTER)

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = centred(ATTENTION | HEAD_NORMS | FFN_NORM)
        tensors |= GATE if self.present("attn_gate.weight") else {}
        if number < self.dense_layers:
            return tensors | self.feed_forward(number)
        experts = {f"ffn_{of}_exps.weight": f"moe.experts.{{}}.{of}_proj.weight" for of in PARTS}
        shared = {f"ffn_{of}_shexp.weight": f"share_expert.{of}_proj.weight" for of in PARTS}
        router = plain({"ffn_gate_inp.weight": "moe.gate.weight"})
        bias = {"exp_probs_b.bias": "moe.router_bias"}
        return tensors | router | named(bias | experts | shared)

    def checkpoint_name(self, module: str) -> str:
        return module.replace(".moe.share_expert.", ".share_expert.")


class Laguna(Alternating):
    """Laguna: gates of heads or of their channels."""

    class_name = "LagunaForCausalLM"
    model_type = "laguna"
    partial_rotary = True

    @property
    def window(self) -> int:
        """Its length; 0 where no layer has one."""
        return self.size("attention.sliding_window", 0, least=0)

    @property
    def windows(self) -> list[bool]:
        return self.windowed(4, first=True) if self.window else [False] * self.num_layers

    @property
    def shared_experts(self) -> int:
        return self.size("expert_shared_count", 1)

    @property
    def gate_per_head(self) -> bool:
        """Whether all channels of a head have the same gate."""
        gate = self.file.tensors.get("blk.0.attn_gate.weight")
        return gate is None or gate.shape[0] == self.of_kind(
            "attention.head_count", self.windows[0]
        )

    def gates(self, heads: int) -> int:
        return heads if self.gate_per_head else heads * self.head_dim

    def config(self) -> dict[str, Any]:
        config = super().config()
        if not config["norm_topk_prob"]:
            raise self.refuse("has experts whose weights do not sum to 1")
        width = config["moe_intermediate_size"] * self.shared_experts
        theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
        factor = config.pop("partial_rotary_factor", 1.0)
        own = self.number("rope.freq_base_swa", theta)
        rotated = self.size("rope.dimension_count", self.head_dim)
        turned = self.size("rope.dimension_count_swa", rotated)
        if turned % 2 or turned > self.head_dim:
            raise self.file.error(f"rotates {turned} of {self.head_dim} channels of each head")
        return config | {
            "attention_bias": False,
            "gating": True if self.gate_per_head else "per-element",
            "layer_types": layer_types(self.windows),
            "mlp_layer_types": self.mlp_layer_types(),
            "moe_routed_scaling_factor": config["routed_scaling_factor"],
            "num_attention_heads_per_layer": [
                self.of_kind("attention.head_count", window) for window in self.windows
            ],
            "num_experts": config["n_routed_experts"],
            "rope_parameters": {
                "full_attention": {
                    **(scaling or {"rope_type": "default"}),
                    "rope_theta": theta,
                    "partial_rotary_factor": factor,
                },
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": own,
                    "partial_rotary_factor": turned / self.head_dim,
                },
            },
            "shared_expert_intermediate_size": self.size(
                "expert_shared_feed_forward_length", width
            ),
            "sliding_window": self.window,
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number) | HEAD_NORMS | GATE
        if number < self.dense_layers:
            return tensors
        shared = {
            name: tensor.name.replace("shared_experts", "shared_expert")
            for name, tensor in SHARED.items()
        }
        bias = {"exp_probs_b.bias": "mlp.experts.e_score_correction_bias"}
        return tensors | named(shared | bias)


KNOWN = {"laguna": Laguna, "mimo2": MiMoV2, "step35": Step35}

"""Laguna, Step 3.5 and MiMo 2: mixtures whose layers with windows have heads of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import (
    ROPE_FACTORS,
    SIGMOID,
    layer_types,
    llama3_factors,
)
from cpu_backend.gguf.architectures.routed import Routed
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    EXPERTS,
    FFN_NORM,
    HEAD_NORMS,
    MLP,
    Tensor,
    centred,
    named,
)
from cpu_backend.gguf.metadata import shortest_float


class Windowed(Routed):
    """What they share: of some layers the number of heads, the positions and the window differ."""

    partial_rotary = True
    gating = SIGMOID
    scoring = (SIGMOID,)
    period = 0  # of layers without windows, of which the first is one, if a file does not say it

    @property
    def num_heads(self) -> int:
        """Of the first layer."""
        return self.heads[0]

    @property
    def heads(self) -> list[int]:
        """Of each layer's queries."""
        return self.per_layer("attention.head_count", least=1)

    def windows(self) -> list[bool]:
        """Whether each layer has a window."""
        if not self.size("attention.sliding_window", 0, least=0):
            return [False] * self.num_layers
        return self.windowed(self.period, first=True)

    def of_kind(self, values: list[int], windowed: bool) -> int:
        """What the layers with windows, or those without, have in common; 0 without such layers."""
        pairs = zip(values, self.windows(), strict=True)
        found = {value for value, window in pairs if window == windowed}
        if len(found) > 1:
            raise self.refuse("has layers of one kind that differ")
        return found.pop() if found else 0

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        heads = self.heads[layer]
        groups = self.per_layer("attention.head_count_kv", least=1)[layer]
        key, value = sizes["head"], config.get("v_head_dim", sizes["head"])
        return sizes | {
            "heads": heads,
            "queries": heads * key,
            "keys": groups * key,
            "values": groups * value,
            "outputs": heads * value,
        }


class Laguna(Windowed):
    """Laguna: gates behind the attention, of heads or of channels."""

    class_name = "LagunaForCausalLM"
    model_type = "laguna"
    period = 4

    def config(self) -> dict[str, Any]:
        config = super().config()
        if not self.flag("expert_weights_norm", True):
            raise self.refuse("does not make the weights of experts sum to 1")
        sparse = self.num_layers - self.dense_layers
        return config | {
            "attention_bias": False,
            "gating": "per-element" if self.gate_of_channels else True,
            "layer_types": layer_types(self.windows()),
            "mlp_layer_types": ["dense"] * self.dense_layers + ["sparse"] * sparse,
            "moe_routed_scaling_factor": config["routed_scaling_factor"],
            "num_attention_heads_per_layer": self.heads,
            "num_experts": config["n_routed_experts"],
            "shared_expert_intermediate_size": self.size("expert_shared_feed_forward_length"),
            "sliding_window": self.size("attention.sliding_window", 0, least=0) or None,
        }

    @property
    def gate_of_channels(self) -> bool:
        """Whether each channel of a head has a gate, as all layers then have it."""
        gate = self.file.tensors.get("blk.0.attn_gate.weight")
        return gate is not None and gate.shape[0] != self.num_heads

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        full = {
            "rope_type": "default",
            **(config["rope_scaling"] or {}),
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
        }
        rotated = int(full["partial_rotary_factor"] * self.head_dim)
        rotated = self.size("rope.dimension_count_swa", rotated)
        if rotated % 2 or rotated > self.head_dim:
            raise self.file.error(f"rotates {rotated} of {self.head_dim} channels of each head")
        sliding = {
            "rope_type": "default",
            "rope_theta": self.number("rope.freq_base_swa", full["rope_theta"]),
            "partial_rotary_factor": rotated / self.head_dim,
        }
        return {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}

    def layer(self, number: int) -> dict[str, Tensor]:
        shape = ("queries" if self.gate_of_channels else "heads", "hidden")
        gate = {"attn_gate.weight": Tensor("self_attn.g_proj.weight", shape)}
        tensors = ATTENTION | HEAD_NORMS | gate | FFN_NORM
        if number < self.dense_layers:
            return tensors | MLP
        others = {
            "exp_probs_b.bias": "mlp.experts.e_score_correction_bias",
            "ffn_gate_shexp.weight": "mlp.shared_expert.gate_proj.weight",
            "ffn_up_shexp.weight": "mlp.shared_expert.up_proj.weight",
            "ffn_down_shexp.weight": "mlp.shared_expert.down_proj.weight",
        }
        return tensors | EXPERTS | named(others)


class MiMo2(Windowed):
    """MiMo 2: values of another length than keys, and sinks in layers with windows."""

    class_name = "MiMoV2FlashForCausalLM"
    model_type = "mimo_v2_flash"
    other_classes = ("MiMoV2ForCausalLM",)
    grouped = True

    @property
    def head_dim(self) -> int:
        """Of keys."""
        return self.size("attention.key_length")

    def config(self) -> dict[str, Any]:
        windows = self.windows()
        if not any(windows) or all(windows):
            raise self.refuse("has no layers with windows, or no others")
        config = super().config()
        groups = self.per_layer("attention.head_count_kv", least=1)
        value, scale = self.size("attention.value_length"), "attention.value_scale"
        theta, window = config["rope_theta"], self.size("attention.sliding_window")
        return config | {
            "add_swa_attention_sink_bias": True,
            "attention_bias": False,
            "attention_value_scale": self.number(scale) if self.has(scale) else None,
            "hybrid_layer_pattern": [int(window) for window in windows],
            "layernorm_epsilon": config["rms_norm_eps"],
            "moe_layer_freq": [int(self.sparse(layer)) for layer in range(self.num_layers)],
            "num_key_value_heads": self.of_kind(groups, windowed=False),
            "partial_rotary_factor": config.get("partial_rotary_factor", 1.0),
            "sliding_window": window,
            "sliding_window_size": window,
            "swa_head_dim": self.head_dim,
            "swa_num_attention_heads": self.num_heads,
            "swa_num_key_value_heads": self.of_kind(groups, windowed=True),
            "swa_rope_theta": self.number("rope.freq_base_swa", theta),
            "swa_v_head_dim": value,
            "topk_method": "noaux_tc",
            "v_head_dim": value,
        }

    def kv_heads(self) -> int:
        return 1  # which config() says for each kind of layers

    def sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.present("ffn_gate_inp.weight", layer)

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = ATTENTION | FFN_NORM
        if self.windows()[number]:
            tensors |= named({"attn_sinks.weight": "self_attn.attention_sink_bias"})
        if not self.sparse(number):
            return tensors | MLP
        return tensors | EXPERTS | named({"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"})


class Step35(Windowed):
    """Step 3.5 Flash: a gate for each head, norms around 0, limits of what experts multiply."""

    class_name = "Step3p5ForCausalLM"
    model_type = "step3p5"

    def config(self) -> dict[str, Any]:
        windows = self.windows()
        if not any(windows) or all(windows):
            raise self.refuse("has no layers with windows, or no others")
        if self.size("moe_every_n_layers", 1) != 1:
            raise self.refuse("has dense layers between those with experts")
        config = super().config()
        scaling = config.pop("rope_scaling")
        theta = config.pop("rope_theta")
        thetas = (theta, self.number("rope.freq_base_swa", theta))
        groups = self.per_layer("attention.head_count_kv", least=1)
        limits, shared = (self.limits(f"swiglu_clamp_{part}") for part in ("exp", "shexp"))
        if not set(limits) <= {0.0, 7.0}:
            raise self.refuse("limits what experts multiply to other numbers than 7")
        sparse = range(self.dense_layers, self.num_layers)
        return config | {
            "attention_bias": False,
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "head_dim": self.head_dim,
                "num_attention_groups": self.of_kind(groups, windowed=True),
                "num_attention_heads": self.of_kind(self.heads, windowed=True),
            },
            "layer_types": layer_types(windows),
            "moe_layers_enum": ",".join(map(str, sparse)),
            "moe_num_experts": config["n_routed_experts"],
            "moe_router_activation": "sigmoid",
            "moe_router_scaling_factor": config["routed_scaling_factor"],
            "moe_top_k": config["num_experts_per_tok"],
            "norm_expert_weight": config["norm_topk_prob"],
            "num_attention_groups": self.of_kind(groups, windowed=False),
            "num_attention_heads": self.of_kind(self.heads, windowed=False),
            "partial_rotary_factors": [1.0 if window else 0.5 for window in windows],
            "rope_scaling": scaling,
            "rope_theta": [thetas[window] for window in windows],
            "share_expert_dim": self.size("expert_shared_feed_forward_length"),
            "sliding_window": self.size("attention.sliding_window"),
            "swiglu_limits": limits,
            "swiglu_limits_shared": shared,
            "use_head_wise_attn_gate": True,
            "yarn_only_types": ["full_attention"],
        }

    def kv_heads(self) -> int:
        return 1  # which config() says for each kind of layers

    def limits(self, key: str) -> list[float]:
        """Of each layer, 0 for none."""
        found = np.asarray(self.file.metadata.get(self.field(key), [0.0] * self.num_layers))
        numbers = found.dtype.kind == "f" and found.ndim == 1 and np.isfinite(found).all()
        if not numbers or len(found) < self.num_layers or (found < 0).any():
            raise self.file.error(f"has other than numbers in the field '{self.name}.{key}'")
        return [shortest_float(value) for value in found[: self.num_layers]]

    def rope_scaling(self) -> dict[str, Any] | None:
        """Of the half of the channels that layers without windows rotate, which the file has the
        factors of, and 1 for the others."""
        if ROPE_FACTORS not in self.file.tensors:
            return super().rope_scaling()
        found, half = self.vector(ROPE_FACTORS, self.head_dim // 2), self.head_dim // 4
        scaling = {"rope_type": "llama3", "factor": shortest_float(float(found[:half].max()))}
        scaling |= STEP_ROPE
        theta = self.number("rope.freq_base", 10000.0)
        expected = llama3_factors(self.head_dim // 2, theta, scaling)
        if not np.allclose(found, [*expected, *[1.0] * (len(found) - half)], rtol=1e-4):
            raise self.file.error(
                f"has factors of positions in '{ROPE_FACTORS}' that are not those of Step 3.5",
                "use the original checkpoint",
            )
        return scaling

    def outer(self) -> dict[str, Tensor]:
        return centred(super().outer())

    def layer(self, number: int) -> dict[str, Tensor]:
        gate = {"attn_gate.weight": Tensor("self_attn.g_proj.weight", ("heads", "hidden"))}
        tensors = centred(ATTENTION | HEAD_NORMS | FFN_NORM) | gate
        if number < self.dense_layers:
            return tensors | MLP
        experts = {name: replace(t, name=f"moe.{t.name[4:]}") for name, t in EXPERTS.items()}
        shared = {
            "exp_probs_b.bias": "moe.router_bias",
            "ffn_gate_shexp.weight": "share_expert.gate_proj.weight",
            "ffn_up_shexp.weight": "share_expert.up_proj.weight",
            "ffn_down_shexp.weight": "share_expert.down_proj.weight",
        }
        return tensors | experts | named(shared)

    def checkpoint_name(self, module: str) -> str:
        return module.replace(".moe.share_expert.", ".share_expert.")


# What Step 3.5 has of LLAMA3_ROPE.
STEP_ROPE = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 32.0,
    "original_max_position_embeddings": 131072,
}
KNOWN = {"laguna": Laguna, "mimo2": MiMo2, "step35": Step35}

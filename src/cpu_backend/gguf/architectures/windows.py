"""Mellum 2 and PLaMo 3: layers with windows and a base of positions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture, layer_types
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    EXPERTS,
    FFN_NORM,
    HEAD_NORMS,
    Tensor,
    named,
)


class Mellum(Architecture):
    """Mellum 2: a mixture in every layer."""

    class_name = "MellumForCausalLM"
    model_type = "mellum"

    def config(self) -> dict[str, Any]:
        config = super().config() | self.experts()
        theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling")
        window = self.size("attention.sliding_window", 0, least=0)
        windowed = self.windowed(4) if window else [False] * self.num_layers
        own = self.number("rope.freq_base_swa", theta)
        return config | {
            "attention_bias": False,
            "layer_types": layer_types(windowed),
            "norm_topk_prob": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", **(scaling or {}), "rope_theta": theta},
                "sliding_attention": {"rope_type": "default", "rope_theta": own},
            },
            "sliding_window": window or None,
        }

    def intermediate_size(self) -> int:
        return self.size("feed_forward_length", self.expert_ffn())

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | HEAD_NORMS | EXPERTS


class Plamo3(Architecture):
    """PLaMo 3: norms around a constant, before and after; transformers has no config class of this
    name."""

    class_name = "Plamo3ForCausalLM"
    has_head = False  # that could be quantized

    def config(self) -> dict[str, Any]:
        config = super().config()
        window = self.size("attention.sliding_window", 0, least=0)
        windowed = self.windowed(8) if window else [False] * self.num_layers
        return config | {
            "interleaved_sliding_window": [window if w else None for w in windowed],
            "layer_types": layer_types(windowed),
            "rope_local_theta": self.number("rope.freq_base_swa", 10000.0),
            "sliding_window": window or None,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"gate_up": 2 * config["intermediate_size"]}

    def outer(self) -> dict[str, Tensor]:
        outer = super().outer()
        return outer | {
            "output_norm.weight": Tensor("model.norm.weight", values=less(1.0)),
            "output.weight": Tensor("lm_head.weight", plain=True),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        norms = {name: Tensor(here, values=less(centre)) for name, (here, centre) in NORMS.items()}
        matrices = named(
            {
                "attn_qkv.weight": "mixer.qkv_proj.weight",
                "attn_output.weight": "mixer.o_proj.weight",
                "ffn_down.weight": "mlp.down_proj.weight",
            }
        )
        both = Tensor("mlp.gate_up_proj.weight", ("gate_up", "hidden"))
        return norms | matrices | {"ffn_up.weight": both}

    def prefix(self, number: int) -> str:
        return f"model.layers.layers.{number}."


# By the name in a file: that in a checkpoint, and what it adds to the numbers there.
NORMS = {
    "attn_norm.weight": ("pre_mixer_norm.weight", 1.0),
    "attn_q_norm.weight": ("mixer.q_norm.weight", 1.0),
    "attn_k_norm.weight": ("mixer.k_norm.weight", 1.0),
    "post_attention_norm": ("post_mixer_norm.weight", 1 / 5),
    "ffn_norm.weight": ("pre_mlp_norm.weight", 1.0),
    "post_ffw_norm": ("post_mlp_norm.weight", 1 / 5**1.5),
}


def less(centre: float) -> Callable[[Any], Any]:
    """What a checkpoint has of norms around ``centre``."""
    return lambda weight: weight - centre


KNOWN = {"mellum": Mellum, "plamo3": Plamo3}

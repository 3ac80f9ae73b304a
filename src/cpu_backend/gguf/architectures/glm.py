"""GLM 4 and its mixtures, and dots.llm1, which computes the same as those."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import SIGMOID, Architecture
from cpu_backend.gguf.architectures.routed import CORRECTION, Routed
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    FFN_NORM,
    HEAD_NORMS,
    QKV_BIASES,
    Order,
    Tensor,
    named,
    optional,
)


def first_half(rows: int) -> np.ndarray:
    """The gate's of a gate and an up projection in one."""
    return np.arange(rows // 2)


def second_half(rows: int) -> np.ndarray:
    """Those of the up projection."""
    return np.arange(rows // 2, rows)


# The file has the gate and the up projection as one, the gate first.
GATE_IN_UP = {
    "ffn_up.weight|gate": Tensor("mlp.gate_proj.weight", ("gate_up", "hidden"), rows=first_half),
    "ffn_up.weight": Tensor("mlp.up_proj.weight", ("gate_up", "hidden"), rows=second_half),
    **named({"ffn_down.weight": "mlp.down_proj.weight"}),
}
GLM4_NORMS = named(
    {
        "post_attention_norm.weight": "post_self_attn_layernorm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "post_ffw_norm.weight": "post_mlp_layernorm.weight",
    }
)
NORM_BEHIND = named({"post_attention_norm.weight": "post_attention_layernorm.weight"})


def interleaving(head_dim: int, rotated: int) -> Order:
    """Puts channels that turn together beside each other, of which heads have all first ones first
    among those ``rotated``."""

    def rows(count: int) -> np.ndarray:
        turned = np.arange(rotated).reshape(2, -1).T.reshape(-1)
        head = np.concatenate([turned, np.arange(rotated, head_dim)])
        return (np.arange(0, count, head_dim)[:, None] + head).reshape(-1)

    return rows


def biased(architecture: Architecture) -> dict[str, Any]:
    """What both say of their attention."""
    rotated = architecture.size("rope.dimension_count", architecture.head_dim)
    return {
        "attention_bias": architecture.present("attn_q.bias"),
        # Half of each head if it is not said.
        "partial_rotary_factor": rotated / architecture.head_dim,
    }


class Glm4(Architecture):
    """GLM-4-0414, GLM-Z1, and the text of GLM-4.1V and GLM-OCR: four norms a layer."""

    class_name = "Glm4ForCausalLM"
    model_type = "glm4"
    partial_rotary = True

    def config(self) -> dict[str, Any]:
        return super().config() | biased(self)

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"gate_up": 2 * config["intermediate_size"]}

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = ATTENTION | optional(QKV_BIASES) | GLM4_NORMS | GATE_IN_UP
        if not self.has("rope.dimension_sections"):
            return tensors
        # llama.cpp turns them another way where positions are of pictures, too.
        rotated = self.size("rope.dimension_count", self.head_dim)
        order = interleaving(self.head_dim, rotated)
        turned = {
            name: tensors[name] for name in tensors if name.startswith(("attn_q.", "attn_k."))
        }
        return tensors | {name: replace(tensor, rows=order) for name, tensor in turned.items()}


class Glm4Moe(Routed):
    """GLM 4.5 to 4.7, the text of GLM-4.5V and GLM-4.6V, and Solar Open."""

    class_name = "Glm4MoeForCausalLM"
    model_type = "glm4_moe"
    partial_rotary = True
    gating = SIGMOID
    scoring = (SIGMOID,)
    grouped = True
    norm_behind = NORM_BEHIND  # attention

    @property
    def head_norms(self) -> bool:
        """Whether queries and keys have norms."""
        return self.present("attn_q_norm.weight")

    def config(self) -> dict[str, Any]:
        return super().config() | biased(self) | {"use_qk_norm": self.head_norms}

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = ATTENTION | optional(QKV_BIASES) | self.norm_behind | self.feed_forward(number)
        tensors |= HEAD_NORMS if self.head_norms else {}
        return tensors if number < self.dense_layers else tensors | CORRECTION


class Dots1(Glm4Moe):
    """dots.llm1, of which the host has no class of its own: heads are rotated as a whole."""

    partial_rotary = False
    norm_behind = FFN_NORM


KNOWN = {"dots1": Dots1, "glm4": Glm4, "glm4moe": Glm4Moe}

"""EXAONE 3 to 4."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import Architecture, layer_types
from cpu_backend.gguf.architectures.tensors import ATTENTION, HEAD_NORMS, MLP, Tensor, named

NORMS_AFTER = named(
    {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    }
)


class Exaone(Architecture):
    """EXAONE 3, 3.5 and Deep, loaded as Llama, which computes the same: the host's own class gives
    its layers other names than its weights."""


class Exaone4(Architecture):
    """EXAONE 4: norms after attention and what follows it; without windows in some layers, and
    without positions there if others have windows."""

    class_name = "Exaone4ForCausalLM"
    model_type = "exaone4"

    def config(self) -> dict[str, Any]:
        # The largest model has them, whether a file says so or not.
        window = self.size("attention.sliding_window", 4096 * (self.num_layers == 64), least=0)
        windowed = self.windowed(4) if window else [False] * self.num_layers
        types = layer_types(windowed)
        return super().config() | {"layer_types": types, "sliding_window": window or None}

    def layer(self, number: int) -> dict[str, Tensor]:
        attention = {name: tensor for name, tensor in ATTENTION.items() if "norm" not in name}
        return attention | HEAD_NORMS | MLP | NORMS_AFTER


KNOWN = {"exaone": Exaone, "exaone4": Exaone4}

"""Dense models that are nearly Llama: SmolLM 3, Seed-OSS, Arcee, openPangu, Apertus."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.llama import BIASES, Llama
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    FFN_NORM,
    HEAD_NORMS,
    MLP,
    QKV_BIASES,
    Tensor,
    named,
)


class SmolLm3(Llama):
    """SmolLM 3: no positions in every fourth layer."""

    class_name = "SmolLM3ForCausalLM"
    model_type = "smollm3"

    def config(self) -> dict[str, Any]:
        rotated = [int((layer + 1) % 4 != 0) for layer in range(self.num_layers)]
        return super().config() | {
            "layer_types": ["full_attention"] * self.num_layers,
            "no_rope_layer_interval": 4,
            "no_rope_layers": rotated,
            "use_sliding_window": False,
        }


class SeedOss(Architecture):
    """Seed-OSS: biases of queries, keys and values."""

    class_name = "SeedOssForCausalLM"
    model_type = "seed_oss"

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
            "residual_dropout": 0.0,
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        norm = {"post_attention_norm.weight": "post_attention_layernorm.weight"}
        return ATTENTION | MLP | named(norm | QKV_BIASES)


class Arcee(Llama):
    """Arcee's AFM: squared ReLU without a gate."""

    class_name = "ArceeForCausalLM"
    model_type = "arcee"
    activation = "relu2"

    def layer(self, number: int) -> dict[str, Tensor]:
        return {k: t for k, t in super().layer(number).items() if not k.startswith("ffn_gate.")}


class PanguEmbedded(Llama):
    """openPangu Embedded: a Llama with biases, whose channels that turn together are apart."""

    other_classes = ("PanguEmbeddedForCausalLM",)

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | MLP | BIASES


class Apertus(Architecture):
    """Apertus: norms of heads, an activation whose numbers are in the metadata."""

    class_name = "ApertusForCausalLM"
    model_type = "apertus"
    activation = "xielu"

    def config(self) -> dict[str, Any]:
        for key, expected in (("beta", 0.5), ("eps", -1e-6)):
            if not np.allclose(self.activations(key), expected, rtol=1e-3, atol=0):
                raise self.refuse(f"has another {key} of its activation than {expected}")
        return super().config() | {"attention_bias": False, "mlp_bias": False, "post_norm": False}

    def activations(self, key: str) -> np.ndarray:
        """A number of each layer's activation."""
        name = f"xielu.{key}"
        found = np.asarray(self.file.metadata.get(name, []), np.float32).reshape(-1)
        if found.size == 1:
            found = np.repeat(found, self.num_layers)
        if found.size != self.num_layers or not np.isfinite(found).all():
            raise self.file.error(f"has {found.size} numbers in the field '{name}'")
        return found

    def constants(self) -> dict[str, np.ndarray]:
        return {
            f"{self.prefix(layer)}mlp.act_fn.{key}": self.activations(key)[layer : layer + 1]
            for layer in range(self.num_layers)
            for key in ("alpha_n", "alpha_p")
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = ATTENTION | HEAD_NORMS | MLP
        del tensors["ffn_gate.weight"]
        norms = {
            "attn_norm.weight": "attention_layernorm.weight",
            "ffn_norm.weight": "feedforward_layernorm.weight",
        }
        return tensors | named(norms)


KNOWN = {
    "apertus": Apertus,
    "arcee": Arcee,
    "pangu-embedded": PanguEmbedded,
    "seed_oss": SeedOss,
    "smollm3": SmolLm3,
}

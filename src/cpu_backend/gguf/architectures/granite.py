"""Granite 3, dense and mixtures: factors of embeddings, scores, residuals and logits."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import layer_types
from cpu_backend.gguf.architectures.llama import Llama, interleaved
from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, Tensor, named, plain

EXPERTS = plain({"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"}) | named(
    {
        "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.gate_proj.weight",
        "ffn_up_exps.weight": "block_sparse_moe.experts.{}.up_proj.weight",
        "ffn_down_exps.weight": "block_sparse_moe.experts.{}.down_proj.weight",
    }
)

SHARED = {
    "ffn_up_shexp.weight": Tensor("shared_mlp.input_linear.weight", ("gate_up", "hidden")),
    "ffn_down_shexp.weight": Tensor("shared_mlp.output_linear.weight"),
}


class Granite(Llama):
    """Granite 3's dense models."""

    class_name = "GraniteForCausalLM"
    model_type = "granite"

    def config(self) -> dict[str, Any]:
        if self.has("deepstack_mapping"):
            raise self.refuse("has inputs of images in its layers")
        return super().config() | {
            "attention_multiplier": self.number("attention.scale", self.head_dim**-0.5),
            "embedding_multiplier": self.number("embedding_scale", 1.0),
            "logits_scaling": self.number("logit_scale"),
            "residual_multiplier": self.number("residual_scale", 1.0),
        }


class GraniteMoe(Granite):
    """Granite 3's mixtures."""

    class_name = "GraniteMoeForCausalLM"
    model_type = "granitemoe"

    @property
    def shared_ffn(self) -> int:
        """Of experts that all tokens share."""
        return 0

    def config(self) -> dict[str, Any]:
        if self.size("expert_shared_feed_forward_length", 0, least=0) != self.shared_ffn:
            raise self.refuse("has experts that all tokens share")
        experts = self.experts("num_local_experts")
        size = experts["moe_intermediate_size"]
        return super().config() | experts | {"intermediate_size": size}

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def layer(self, number: int) -> dict[str, Tensor]:
        return interleaved(ATTENTION | FFN_NORM) | EXPERTS


class GraniteSwa(Granite):
    """Granite with windows in most layers, and sinks."""

    class_name = "GraniteSWAForCausalLM"
    model_type = "granite_swa"

    def config(self) -> dict[str, Any]:
        config = super().config()
        if not self.has("attention.sliding_window_pattern"):
            raise self.refuse("does not say which of its layers have windows")
        theta, rotated = config["rope_theta"], self.per_layer("attention.rope_pattern", 1)
        return config | {
            "attention_sinks": self.present("attn_sinks.weight"),
            "layer_rope_theta": [theta if turned else 0 for turned in rotated],
            "layer_types": layer_types(self.windowed(0)),
            "sliding_window": self.size("attention.sliding_window"),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        sinks = {"attn_sinks.weight": Tensor("self_attn.sinks")}
        return super().layer(number) | (sinks if self.present("attn_sinks.weight") else {})


class GraniteMoeSwa(GraniteSwa, GraniteMoe):
    """The mixtures of those."""

    class_name = "GraniteMoeSWAForCausalLM"
    model_type = "granitemoe_swa"

    @property
    def shared_ffn(self) -> int:
        return self.size("expert_shared_feed_forward_length", 0, least=0)

    def config(self) -> dict[str, Any]:
        return super().config() | {"shared_intermediate_size": self.shared_ffn}

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"gate_up": 2 * self.shared_ffn}

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | (SHARED if self.shared_ffn else {})


KNOWN = {"granite": Granite, "granite_swa": GraniteSwa, "granitemoe": GraniteMoe}
MIXTURES = {"granite_swa": GraniteMoeSwa}

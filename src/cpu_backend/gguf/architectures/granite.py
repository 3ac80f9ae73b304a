"""Granite 3, dense and mixtures: factors of embeddings, scores, residuals and logits."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.llama import Llama, interleaved
from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, Tensor, named, plain

EXPERTS = plain({"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"}) | named(
    {
        "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.gate_proj.weight",
        "ffn_up_exps.weight": "block_sparse_moe.experts.{}.up_proj.weight",
        "ffn_down_exps.weight": "block_sparse_moe.experts.{}.down_proj.weight",
    }
)


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

    def config(self) -> dict[str, Any]:
        if self.size("expert_shared_feed_forward_length", 0, least=0):
            raise self.refuse("has experts that all tokens share")
        experts = self.experts("num_local_experts")
        size = experts["moe_intermediate_size"]
        return super().config() | experts | {"intermediate_size": size}

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def layer(self, number: int) -> dict[str, Tensor]:
        return interleaved(ATTENTION | FFN_NORM) | EXPERTS


KNOWN = {"granite": Granite, "granitemoe": GraniteMoe}

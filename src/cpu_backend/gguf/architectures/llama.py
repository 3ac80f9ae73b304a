"""Llama and what is built like it: biases, Mixtral, rotations of a part of each head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    FFN_NORM,
    MLP,
    QKV_BIASES,
    Tensor,
    named,
    optional,
    plain,
)

# llama.cpp keeps the pairs of channels that turn together beside each other.
INTERLEAVED = {
    "attn_q.weight": "heads",
    "attn_k.weight": "groups",
    "attn_q.bias": "heads",
    "attn_k.bias": "groups",
}
BIASES = optional(
    {
        **QKV_BIASES,
        "attn_output.bias": "self_attn.o_proj.bias",
        "ffn_gate.bias": "mlp.gate_proj.bias",
        "ffn_up.bias": "mlp.up_proj.bias",
        "ffn_down.bias": "mlp.down_proj.bias",
    }
)


def interleaved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the rows of query and key projections interleaved within each head."""
    return {
        name: replace(tensor, heads=INTERLEAVED.get(name, "")) for name, tensor in tensors.items()
    }


class Llama(Architecture):
    """Llama 1 to 3, Mistral, SmolLM2 and others that are one, with biases if there are any."""

    def config(self) -> dict[str, Any]:
        biased = self.present("attn_q.bias")
        if biased != self.present("attn_output.bias"):
            raise self.refuse("has biases in some of the projections of its attention")
        return super().config() | {
            "attention_bias": biased,
            "mlp_bias": self.present("ffn_up.bias"),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        return interleaved(super().layer(number) | BIASES)


class Mixtral(Llama):
    """Mixtral: Llama's attention and experts."""

    class_name = "MixtralForCausalLM"
    model_type = "mixtral"

    def config(self) -> dict[str, Any]:
        experts = self.experts("num_local_experts")
        size = experts["moe_intermediate_size"]
        return super().config() | experts | {"intermediate_size": size, "sliding_window": None}

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def layer(self, number: int) -> dict[str, Tensor]:
        experts = plain({"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"}) | named(
            {
                "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.w1.weight",
                "ffn_up_exps.weight": "block_sparse_moe.experts.{}.w3.weight",
                "ffn_down_exps.weight": "block_sparse_moe.experts.{}.w2.weight",
            }
        )
        return interleaved(ATTENTION | FFN_NORM) | experts


KNOWN = {"llama": Llama}
MIXTURES = {"llama": Mixtral}
__all__ = ["KNOWN", "MIXTURES", "MLP"]

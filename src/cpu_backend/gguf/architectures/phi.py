"""Phi 2, 3 and 4, and the mixture of Phi 3.5."""

from __future__ import annotations

import math
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    FFN_NORM,
    OUTER,
    QKV_BIASES,
    Tensor,
    named,
    plain,
)

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"

# By what Phi-3.5-MoE multiplies its rotary embeddings, which no file says: "short_mscale" of
# https://huggingface.co/microsoft/Phi-3.5-MoE-instruct/blob/main/config.json
MSCALE = 1.243163121016122


class Phi2(Architecture):
    """Phi 1.5 and 2: biases everywhere, attention beside the dense layers."""

    class_name = "PhiForCausalLM"
    model_type = "phi"
    partial_rotary = True
    activation = "gelu_new"
    epsilon = "layer_norm_epsilon"

    def config(self) -> dict[str, Any]:
        config = super().config()
        return config | {"layer_norm_eps": config["rms_norm_eps"], "qk_layernorm": False}

    def outer(self) -> dict[str, Tensor]:
        return OUTER | named(
            {
                "output_norm.weight": "model.final_layernorm.weight",
                "output_norm.bias": "model.final_layernorm.bias",
                "output.bias": "lm_head.bias",
            }
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | named(
            {
                **QKV_BIASES,
                "attn_norm.bias": "input_layernorm.bias",
                "attn_output.weight": "self_attn.dense.weight",
                "attn_output.bias": "self_attn.dense.bias",
                "ffn_up.weight": "mlp.fc1.weight",
                "ffn_up.bias": "mlp.fc1.bias",
                "ffn_down.weight": "mlp.fc2.weight",
                "ffn_down.bias": "mlp.fc2.bias",
            }
        )


class Phi3(Architecture):
    """Phi 3 and 4: one matrix for queries, keys and values, and one for gates and ups."""

    class_name = "Phi3ForCausalLM"
    model_type = "phi3"
    partial_rotary = True

    def config(self) -> dict[str, Any]:
        window = self.size("attention.sliding_window", 0, least=0)
        original = self.size("rope.scaling.original_context_length", self.size("context_length"))
        return super().config() | {
            "original_max_position_embeddings": original,
            "sliding_window": window or None,
        }

    def rope_scaling(self) -> dict[str, Any] | None:
        if LONG not in self.file.tensors and SHORT not in self.file.tensors:
            return super().rope_scaling()
        length = self.size("context_length")
        original = self.size("rope.scaling.original_context_length", length)
        half = self.size("rope.dimension_count", self.head_dim) // 2
        factors = {}
        for name, key in ((LONG, "long_factor"), (SHORT, "short_factor")):
            if name not in self.file.tensors:
                raise self.file.error(f"has no tensor '{name}'", "choose a whole model")
            factors[key] = [float(value) for value in self.vector(name, half)]
        scale = max(length / original, 1.0)
        factor = math.sqrt(1 + math.log(scale) / math.log(original))
        found = self.number("rope.scaling.attn_factor", factor)
        if not math.isclose(found, factor, rel_tol=1e-4):
            raise self.refuse(f"has an attention factor of {found} for its positions")
        return {"rope_type": "longrope", "original_max_position_embeddings": original, **factors}

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = ATTENTION | FFN_NORM
        return {k: t for k, t in tensors.items() if k[:6] not in ("attn_q", "attn_k", "attn_v")} | {
            "attn_qkv.weight": Tensor("self_attn.qkv_proj.weight"),
            "ffn_up.weight": Tensor("mlp.gate_up_proj.weight", ("gate_up", "hidden")),
            "ffn_down.weight": Tensor("mlp.down_proj.weight"),
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        return sizes | {"gate_up": 2 * sizes["ffn"]}

    def ignored(self, name: str) -> bool:
        return name in (LONG, SHORT) or super().ignored(name)


class PhiMoe(Phi3):
    """Phi 3.5's mixture: norms and output layers with biases."""

    class_name = "PhiMoEForCausalLM"
    model_type = "phimoe"
    partial_rotary = False
    has_head = False

    def config(self) -> dict[str, Any]:
        experts = self.experts("num_local_experts")
        size = experts["moe_intermediate_size"]
        return (
            super().config()
            | experts
            | {
                "attention_bias": True,
                "intermediate_size": size,
                "lm_head_bias": True,
            }
        )

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def rope_scaling(self) -> dict[str, Any] | None:
        scaling = super().rope_scaling()
        if scaling is not None and scaling["rope_type"] == "longrope":
            scaling |= {"short_mscale": MSCALE, "long_mscale": MSCALE}
        return scaling

    def outer(self) -> dict[str, Tensor]:
        # The host's output layer is never quantized.
        head = plain({"output.weight": "lm_head.weight"})
        biases = {"output_norm.bias": "model.norm.bias", "output.bias": "lm_head.bias"}
        return OUTER | head | named(biases)

    def layer(self, number: int) -> dict[str, Tensor]:
        experts = plain({"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"}) | named(
            {
                "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.w1.weight",
                "ffn_up_exps.weight": "block_sparse_moe.experts.{}.w3.weight",
                "ffn_down_exps.weight": "block_sparse_moe.experts.{}.w2.weight",
            }
        )
        biases = named(
            {
                **QKV_BIASES,
                "attn_norm.bias": "input_layernorm.bias",
                "attn_output.bias": "self_attn.o_proj.bias",
                "ffn_norm.bias": "post_attention_layernorm.bias",
            }
        )
        return ATTENTION | FFN_NORM | biases | experts


KNOWN = {"phi2": Phi2, "phi3": Phi3, "phimoe": PhiMoe}

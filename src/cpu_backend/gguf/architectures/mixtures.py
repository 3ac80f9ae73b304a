"""Ernie 4.5, MiniMax M2, Ling 2 and Hunyuan, with their dense models."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import (
    ATTENTION,
    FFN_NORM,
    MLP,
    OUTER,
    Architecture,
    Tensor,
    named,
    plain,
)
from cpu_backend.gguf.architectures.routed import SIGMOID, SOFTMAX, Routed

HUNYUAN_NORMS = named(
    {
        "attn_q_norm.weight": "self_attn.query_layernorm.weight",
        "attn_k_norm.weight": "self_attn.key_layernorm.weight",
    }
)


class Ernie(Architecture):
    """Ernie 4.5, dense."""

    class_name = "Ernie4_5ForCausalLM"
    model_type = "ernie4_5"

    def config(self) -> dict[str, Any]:
        return super().config() | {"use_bias": False}


class ErnieMoe(Routed):
    """Ernie 4.5's mixtures."""

    class_name = "Ernie4_5_MoeForCausalLM"
    model_type = "ernie4_5_moe"
    scoring = (SOFTMAX,)

    def config(self) -> dict[str, Any]:
        if self.size("interleave_moe_layer_step", 1) != 1:
            raise self.refuse("has dense layers between those with experts")
        if self.weights_scale() != 1:
            raise self.refuse("scales the weights of experts")
        config = super().config()
        return config | {
            "moe_k": config["num_experts_per_tok"],
            "moe_layer_end_index": self.num_layers - 1,
            "moe_layer_interval": 1,
            "moe_layer_start_index": self.dense_layers,
            "moe_num_experts": config["n_routed_experts"],
            "moe_num_shared_experts": self.shared_experts,
            "use_bias": False,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        # The field is not of this, but of what the number of key heads makes of a dense layer.
        sizes = super().sizes(layer, config)
        return sizes | {"shared_ffn": self.shared_experts * sizes["expert_ffn"]}

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number)
        if number < self.dense_layers:
            return tensors
        name = "exp_probs_b.bias"
        found = self.file.tensors.get(f"blk.{number}.{name}")
        shape = ("experts",) if found and len(found.shape) == 1 else (1, "experts")
        bias = "mlp.moe_statics.e_score_correction_bias"
        return tensors | {name: Tensor(bias, shape, plain=True)}


class MiniMaxM2(Routed):
    """MiniMax M2: norms of all queries and all keys."""

    class_name = "MiniMaxM2ForCausalLM"
    model_type = "minimax_m2"
    partial_rotary = True
    gating = SIGMOID

    def config(self) -> dict[str, Any]:
        config = super().config()
        if self.weights_scale() != 1 or self.dense_layers or self.shared_experts:
            raise self.refuse("has other experts than MiniMax M2")
        return config | {
            "intermediate_size": config["moe_intermediate_size"],
            "num_local_experts": config["n_routed_experts"],
            "rotary_dim": self.size("rope.dimension_count", self.head_dim),
            "use_qk_norm": True,
            "use_routing_bias": True,
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        router = plain({"ffn_gate_inp.weight": "block_sparse_moe.gate.weight"})
        others = {
            "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
            "ffn_gate_exps.weight": "block_sparse_moe.experts.{}.w1.weight",
            "ffn_up_exps.weight": "block_sparse_moe.experts.{}.w3.weight",
            "ffn_down_exps.weight": "block_sparse_moe.experts.{}.w2.weight",
        }
        norms = {
            "attn_q_norm.weight": Tensor("self_attn.q_norm.weight", ("queries",)),
            "attn_k_norm.weight": Tensor("self_attn.k_norm.weight", ("keys",)),
        }
        return ATTENTION | norms | FFN_NORM | router | named(others)


class Ling2(Routed):
    """Ling 2.0, Ring 2.0 and Sarvam: one matrix for queries, keys and values."""

    class_name = "BailingMoeV2ForCausalLM"
    model_type = "glm4_moe"  # which transformers knows, and whose sizes have the same names
    other_classes = ("SarvamMoEForCausalLM",)
    partial_rotary = True
    grouped = True

    @property
    def corrected(self) -> bool:
        """Whether experts are chosen by corrected scores."""
        return self.present("exp_probs_b.bias", self.num_layers - 1)

    def config(self) -> dict[str, Any]:
        config = super().config()
        if self.corrected != (config["scoring_func"] == "sigmoid"):
            raise self.refuse("has corrected scores of experts, but no sigmoid, or the reverse")
        rotated = self.size("rope.dimension_count", self.head_dim)
        return config | {
            "embedding_dropout": 0.0,
            "moe_router_enable_expert_bias": self.corrected,
            "moe_shared_expert_intermediate_size": self.shared_ffn,
            "norm_head": False,
            "num_experts": config["n_routed_experts"],
            "num_shared_experts": self.shared_experts,
            "partial_rotary_factor": rotated / self.head_dim,
            "score_function": config["scoring_func"],
            "use_bias": False,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "use_rmsnorm": True,
        }

    @property
    def shared_ffn(self) -> int:
        """Of one shared expert."""
        return self.size("expert_shared_feed_forward_length", 0, least=0) or self.expert_ffn()

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        shared = self.shared_experts * self.shared_ffn
        return super().sizes(layer, config) | {"shared_ffn": shared}

    def outer(self) -> dict[str, Tensor]:
        return OUTER | named({"token_embd.weight": "model.word_embeddings.weight"})

    def layer(self, number: int) -> dict[str, Tensor]:
        names = {
            "attn_norm.weight": "input_layernorm.weight",
            "attn_qkv.weight": "attention.query_key_value.weight",
            "attn_q_norm.weight": "attention.query_layernorm.weight",
            "attn_k_norm.weight": "attention.key_layernorm.weight",
            "attn_output.weight": "attention.dense.weight",
        }
        if number >= self.dense_layers and self.corrected:
            names["exp_probs_b.bias"] = "mlp.gate.expert_bias"
        return named(names) | FFN_NORM | self.feed_forward(number)


class Hunyuan(Architecture):
    """Hunyuan's dense models."""

    class_name = "HunYuanDenseV1ForCausalLM"
    model_type = "hunyuan_v1_dense"

    def config(self) -> dict[str, Any]:
        return super().config() | {"attention_bias": False}

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | HUNYUAN_NORMS | FFN_NORM | MLP


KNOWN = {
    "bailingmoe2": Ling2,
    "ernie4_5": Ernie,
    "ernie4_5-moe": ErnieMoe,
    "hunyuan-dense": Hunyuan,
    "minimax-m2": MiniMaxM2,
}

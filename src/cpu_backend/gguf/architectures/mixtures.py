"""Ernie 4.5, MiniMax M2, Ling 2, Hunyuan, K-EXAONE and Trinity."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, SOFTMAX, Architecture, layer_types
from cpu_backend.gguf.architectures.routed import Routed
from cpu_backend.gguf.architectures.tensors import (
    ATTENTION,
    EXPERTS,
    FFN_NORM,
    HEAD_NORMS,
    MLP,
    OUTER,
    Tensor,
    named,
    plain,
)

HUNYUAN_NORMS = named(
    {
        "attn_q_norm.weight": "self_attn.query_layernorm.weight",
        "attn_k_norm.weight": "self_attn.key_layernorm.weight",
    }
)
HUNYUAN_SHARED = named(
    {
        "ffn_gate_shexp.weight": "mlp.shared_mlp.gate_proj.weight",
        "ffn_up_shexp.weight": "mlp.shared_mlp.up_proj.weight",
        "ffn_down_shexp.weight": "mlp.shared_mlp.down_proj.weight",
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


class HunyuanMoe(Routed):
    """Hunyuan A13B: experts as wide as the one that sees every token."""

    class_name = "HunYuanMoEV1ForCausalLM"
    model_type = "hunyuan_v1_moe"
    scoring = (SOFTMAX,)

    def config(self) -> dict[str, Any]:
        if self.dense_layers or self.weights_scale() != 1:
            raise self.refuse("has dense layers or a scale of experts")
        width = self.expert_ffn()
        if self.size("expert_shared_feed_forward_length", width) != width:
            raise self.refuse("has experts of different widths")
        config = super().config()
        return config | {
            "attention_bias": False,
            "intermediate_size": width,
            "moe_topk": config["num_experts_per_tok"],
            "num_experts": config["n_routed_experts"],
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"shared_ffn": config["intermediate_size"]}

    def layer(self, number: int) -> dict[str, Tensor]:
        router = plain({"ffn_gate_inp.weight": "mlp.gate.wg.weight"})
        return ATTENTION | HUNYUAN_NORMS | FFN_NORM | EXPERTS | router | HUNYUAN_SHARED


class Hunyuan3(Routed):
    """Hunyuan 3."""

    class_name = "HYV3ForCausalLM"
    model_type = "hy_v3"
    gating = SIGMOID
    scoring = (SIGMOID,)

    def config(self) -> dict[str, Any]:
        config = super().config()
        return config | {
            "expert_hidden_dim": config["moe_intermediate_size"],
            "mlp_layer_types": self.mlp_layer_types(),
            "num_experts": config["n_routed_experts"],
            "num_shared_experts": self.shared_experts,
            "qk_norm": True,
            "route_norm": config["norm_topk_prob"],
            "router_scaling_factor": config["routed_scaling_factor"],
        }

    @property
    def shared_experts(self) -> int:
        """As many as their width makes."""
        width = self.expert_ffn()
        shared = self.size("expert_shared_feed_forward_length", width)
        if shared % width:
            raise self.refuse("has shared experts of another width")
        return shared // width

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = super().layer(number) | HEAD_NORMS
        if number < self.dense_layers:
            return tensors
        return (
            tensors
            | plain({"ffn_gate_inp.weight": "mlp.router.gate.weight"})
            | {"exp_probs_b": Tensor("mlp.expert_bias", ("experts",))}
            | HUNYUAN_SHARED
        )


class ExaoneMoe(Routed):
    """K-EXAONE: windows in three of four layers."""

    class_name = "ExaoneMoeForCausalLM"
    model_type = "exaone_moe"
    other_classes = ("ExaoneMoEForCausalLM",)
    gating = SIGMOID
    scoring = (SIGMOID,)
    grouped = True

    def config(self) -> dict[str, Any]:
        if self.has("rope.freq_base_swa"):
            raise self.refuse("has another base of positions in layers with windows")
        config = super().config()
        return config | {
            "layer_types": layer_types(self.windowed(4)),
            "mlp_layer_types": self.mlp_layer_types(),
            "num_experts": config["n_routed_experts"],
            "num_shared_experts": self.shared_experts,
            "sliding_window": self.size("attention.sliding_window"),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        bias = named({"exp_probs_b.bias": "mlp.e_score_correction_bias"})
        tensors = super().layer(number) | HEAD_NORMS
        return tensors if number < self.dense_layers else tensors | bias


class Afmoe(Routed):
    """Trinity: gated attention, windows in three of four layers, a scaled table."""

    class_name = "AfmoeForCausalLM"
    model_type = "afmoe"
    gating = SIGMOID
    scoring = (SIGMOID,)
    grouped = True

    def config(self) -> dict[str, Any]:
        if self.has("rope.freq_base_swa"):
            raise self.refuse("has another base of positions in layers with windows")
        config = super().config()
        return config | {
            "layer_types": layer_types(self.windowed(4)),
            "mup_enabled": True,
            "num_dense_layers": self.dense_layers,
            "num_experts": config["n_routed_experts"],
            "num_shared_experts": self.shared_experts,
            "route_norm": config["norm_topk_prob"],
            "route_scale": config["routed_scaling_factor"],
            "score_func": config["scoring_func"],
            "sliding_window": self.size("attention.sliding_window"),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        norms = {
            "post_attention_norm.weight": "post_attention_layernorm.weight",
            "ffn_norm.weight": "pre_mlp_layernorm.weight",
            "post_ffw_norm.weight": "post_mlp_layernorm.weight",
        }
        gate = {"attn_gate.weight": Tensor("self_attn.gate_proj.weight", ("queries", "hidden"))}
        tensors = ATTENTION | HEAD_NORMS | gate | named(norms) | self.feed_forward(number)
        if number >= self.dense_layers:
            tensors |= plain({"ffn_gate_inp.weight": "mlp.router.gate.weight"})
            tensors |= named({"exp_probs_b.bias": "mlp.expert_bias"})
        return tensors


KNOWN = {
    "afmoe": Afmoe,
    "bailingmoe2": Ling2,
    "ernie4_5": Ernie,
    "ernie4_5-moe": ErnieMoe,
    "exaone-moe": ExaoneMoe,
    "hunyuan-dense": Hunyuan,
    "hunyuan-moe": HunyuanMoe,
    "hy_v3": Hunyuan3,
    "minimax-m2": MiniMaxM2,
}

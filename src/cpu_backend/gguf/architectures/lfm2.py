"""LFM2: short convolutions in most layers, dense and mixtures."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID, Architecture
from cpu_backend.gguf.architectures.tensors import Tensor, named, plain

NORMS = named({"attn_norm.weight": "operator_norm.weight", "ffn_norm.weight": "ffn_norm.weight"})
ATTENTION = named(
    {
        "attn_q.weight": "self_attn.q_proj.weight",
        "attn_k.weight": "self_attn.k_proj.weight",
        "attn_v.weight": "self_attn.v_proj.weight",
        "attn_output.weight": "self_attn.out_proj.weight",
        "attn_q_norm.weight": "self_attn.q_layernorm.weight",
        "attn_k_norm.weight": "self_attn.k_layernorm.weight",
    }
)
CONVOLUTION = {
    "shortconv.conv.weight": Tensor("conv.conv.weight", ("hidden", 1, "taps"), plain=True),
    "shortconv.in_proj.weight": Tensor("conv.in_proj.weight", ("three", "hidden")),
    "shortconv.out_proj.weight": Tensor("conv.out_proj.weight", ("hidden", "hidden")),
}
MLP = named(
    {
        "ffn_gate.weight": "feed_forward.w1.weight",
        "ffn_up.weight": "feed_forward.w3.weight",
        "ffn_down.weight": "feed_forward.w2.weight",
    }
)
EXPERTS = plain({"ffn_gate_inp.weight": "feed_forward.gate.weight"}) | named(
    {
        "exp_probs_b.bias": "feed_forward.expert_bias",
        "ffn_gate_exps.weight": "feed_forward.experts.{}.w1.weight",
        "ffn_up_exps.weight": "feed_forward.experts.{}.w3.weight",
        "ffn_down_exps.weight": "feed_forward.experts.{}.w2.weight",
    }
)


class Lfm2(Architecture):
    """LFM2; its last norm has the name of one of the embeddings in the file."""

    class_name = "Lfm2ForCausalLM"
    model_type = "lfm2"
    has_head = False  # it is always the table

    def config(self) -> dict[str, Any]:
        if self.size("attention.sliding_window", 0, least=0):
            raise self.refuse("has windows of attention")
        if not self.flag("attention.causal", True):
            raise self.refuse("attends to tokens that follow")
        config = super().config()
        if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
            raise self.refuse("has heads that are not as wide as its layers")
        return config | {
            "block_auto_adjust_ff_dim": False,
            "block_dim": config["hidden_size"],
            "conv_L_cache": self.size("shortconv.l_cache"),
            "conv_bias": False,
            "conv_dim": config["hidden_size"],
            "layer_types": [
                "full_attention" if self.attends(layer) else "conv"
                for layer in range(self.num_layers)
            ],
            "norm_eps": config["rms_norm_eps"],
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        sizes = super().sizes(layer, config)
        return sizes | {"three": 3 * sizes["hidden"], "taps": config["conv_L_cache"]}

    def outer(self) -> dict[str, Tensor]:
        tensors = {n: t for n, t in super().outer().items() if n != "output_norm.weight"}
        return tensors | named({"token_embd_norm.weight": "model.embedding_norm.weight"})

    def layer(self, number: int) -> dict[str, Tensor]:
        mixer = ATTENTION if self.attends(number) else CONVOLUTION
        return NORMS | mixer | self.feed_forward(number)

    def feed_forward(self, number: int) -> dict[str, Tensor]:
        """The tensors behind the attention."""
        del number
        return MLP

    def checkpoint_name(self, module: str) -> str:
        return module.replace(".short_conv.", ".conv.")


class Lfm2Moe(Lfm2):
    """LFM2 with experts, but in the first layers."""

    class_name = "Lfm2MoeForCausalLM"
    model_type = "lfm2_moe"

    def config(self) -> dict[str, Any]:
        self.check_router(SIGMOID, normed=True)
        if self.size("expert_gating_func") != SIGMOID:
            raise self.refuse("chooses experts by no known function")
        return (
            super().config()
            | self.experts()
            | {
                "norm_topk_prob": True,
                "num_dense_layers": self.dense(),
                "routed_scaling_factor": 1.0,
                "use_expert_bias": True,
            }
        )

    def dense(self) -> int:
        """The first layers, which have no experts."""
        return self.size("leading_dense_block_count", 0, least=0)

    def feed_forward(self, number: int) -> dict[str, Tensor]:
        return MLP if number < self.dense() else EXPERTS


KNOWN = {"lfm2": Lfm2, "lfm2moe": Lfm2Moe}

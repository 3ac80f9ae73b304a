"""Kimi Linear: delta attention in most layers, latent attention without positions in the others."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import SIGMOID
from cpu_backend.gguf.architectures.deepseek import (
    CUT_KV_B,
    LATENT,
    QUERIES,
    WHOLE_KV_B,
    Deepseek2,
)
from cpu_backend.gguf.architectures.mamba import logarithm
from cpu_backend.gguf.architectures.tensors import FFN_NORM, MLP, Tensor, named, plain
from cpu_backend.gguf.reader import GgufFile

# The host makes one layer of five that it does not cut as others, so they are read as numbers.
DELTA_INPUTS = {
    "attn_q.weight": Tensor("self_attn.q_proj.weight", ("inner", "hidden"), plain=True),
    "attn_k.weight": Tensor("self_attn.k_proj.weight", ("inner", "hidden"), plain=True),
    "attn_v.weight": Tensor("self_attn.v_proj.weight", ("inner", "hidden"), plain=True),
    "ssm_beta.weight": Tensor("self_attn.b_proj.weight", ("heads", "hidden"), plain=True),
    "ssm_f_a.weight": Tensor("self_attn.f_a_proj.weight", ("delta", "hidden"), plain=True),
}
DELTA = {
    "attn_norm.weight": Tensor("input_layernorm.weight"),
    **DELTA_INPUTS,
    **{
        f"ssm_conv1d_{part}.weight": Tensor(
            f"self_attn.{part}_conv1d.weight", ("inner", 1, "kernel"), plain=True
        )
        for part in "qkv"
    },
    "ssm_f_b.weight": Tensor("self_attn.f_b_proj.weight", ("inner", "delta")),
    "ssm_g_a.weight": Tensor("self_attn.g_a_proj.weight", ("delta", "hidden")),
    "ssm_g_b.weight": Tensor("self_attn.g_b_proj.weight", ("inner", "delta")),
    "ssm_dt.bias": Tensor("self_attn.dt_bias", ("inner",)),
    "ssm_a": Tensor("self_attn.A_log", (1, 1, "heads", 1), values=logarithm),
    "ssm_norm.weight": Tensor("self_attn.o_norm.weight", ("delta",)),
    "attn_output.weight": Tensor("self_attn.o_proj.weight", ("hidden", "inner")),
}
MOE = "block_sparse_moe."
SPARSE = plain({"ffn_gate_inp.weight": f"{MOE}gate.weight"}) | named(
    {
        "exp_probs_b.bias": f"{MOE}gate.e_score_correction_bias",
        "ffn_gate_exps.weight": MOE + "experts.{}.w1.weight",
        "ffn_up_exps.weight": MOE + "experts.{}.w3.weight",
        "ffn_down_exps.weight": MOE + "experts.{}.w2.weight",
        "ffn_gate_shexp.weight": f"{MOE}shared_experts.gate_proj.weight",
        "ffn_up_shexp.weight": f"{MOE}shared_experts.up_proj.weight",
        "ffn_down_shexp.weight": f"{MOE}shared_experts.down_proj.weight",
    }
)


class KimiLinear(Deepseek2):
    """Kimi Linear; layers with latent attention have a number of key heads, the others 0."""

    other_classes = ()
    scoring = (SIGMOID,)
    grouped = False

    def __init__(self, file: GgufFile) -> None:
        super().__init__(file)
        self.class_name, self.model_type = "KimiLinearForCausalLM", "kimi_linear"

    def gating_function(self) -> int:
        found = self.size("expert_gating_func", SIGMOID, least=0) or SIGMOID
        if found != SIGMOID:
            raise self.refuse(f"chooses experts by the function {found}")
        return found

    def config(self) -> dict[str, Any]:
        config = super().config()
        layers = range(self.num_layers)
        if not self.flag("expert_weights_norm", True):
            raise self.refuse("does not make the weights of experts sum to 1")
        return config | {
            "linear_attn_config": {
                "full_attn_layers": [layer + 1 for layer in layers if self.attends(layer)],
                "head_dim": self.size("kda.head_dim"),
                "kda_layers": [layer + 1 for layer in layers if not self.attends(layer)],
                "num_heads": config["num_attention_heads"],
                "short_conv_kernel_size": self.size("ssm.conv_kernel"),
            },
            "mla_use_nope": True,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 1,
            "num_experts": config["n_routed_experts"],
            "num_experts_per_token": config["num_experts_per_tok"],
            "num_shared_experts": self.shared_experts,
        }

    def length(self, of: str) -> int:
        self.field("attention.value_length")  # of no head: a width divided by the number of heads
        return super().length(of) if of == "key" else self.size("attention.value_length_mla")

    def rotary(self) -> dict[str, Any]:
        return self.not_rotary()

    def kv_heads(self) -> int:
        return self.size("attention.head_count")

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        delta, sizes = self.size("kda.head_dim"), super().sizes(layer, config)
        return sizes | {"delta": delta, "inner": delta * sizes["heads"]}

    def feed_forward(self, number: int) -> dict[str, Tensor]:
        return MLP if number < self.dense_layers else SPARSE

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = FFN_NORM | self.feed_forward(number)
        if not self.attends(number):
            return tensors | DELTA
        whole = self.present("attn_kv_b.weight", number)
        return tensors | LATENT | QUERIES | (WHOLE_KV_B if whole else CUT_KV_B)

    def checkpoint_name(self, module: str) -> str:
        return module.replace(".in_proj_qkvgfab", ".q_proj")


KNOWN = {"kimi-linear": KimiLinear}

"""gpt-oss: windows in every other layer, sinks, experts with biases."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import Architecture, layer_types
from cpu_backend.gguf.architectures.tensors import Tensor, named, plain

LAYER = named(
    {
        "attn_norm.weight": "input_layernorm.weight",
        "attn_q.weight": "attn.q_proj.weight",
        "attn_k.weight": "attn.k_proj.weight",
        "attn_v.weight": "attn.v_proj.weight",
        "attn_output.weight": "attn.o_proj.weight",
        "attn_q.bias": "attn.q_proj.bias",
        "attn_k.bias": "attn.k_proj.bias",
        "attn_v.bias": "attn.v_proj.bias",
        "attn_output.bias": "attn.o_proj.bias",
        "attn_sinks.weight": "attn.sinks",
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_gate_inp.bias": "mlp.router.bias",
        "ffn_gate_exps.weight": "mlp.experts.routed_experts.gate_weight",
        "ffn_up_exps.weight": "mlp.experts.routed_experts.up_weight",
        "ffn_down_exps.weight": "mlp.experts.routed_experts.down_weight",
    }
) | plain(
    {
        "ffn_gate_inp.weight": "mlp.router.weight",
        "ffn_gate_exps.bias": "mlp.experts.routed_experts.gate_bias",
        "ffn_up_exps.bias": "mlp.experts.routed_experts.up_bias",
        "ffn_down_exps.bias": "mlp.experts.routed_experts.down_bias",
    }
)


class GptOss(Architecture):
    """gpt-oss, whose tensors go by the host's own names: its class does not merge others."""

    class_name = "GptOssForCausalLM"
    model_type = "gpt_oss"
    has_head = False

    def config(self) -> dict[str, Any]:
        config = super().config()
        windowed = self.windowed(2)
        if windowed != [layer % 2 == 0 for layer in range(self.num_layers)]:
            raise self.refuse("has windows in other layers than every other one")
        if config["tie_word_embeddings"]:
            raise self.file.error("has no tensor 'output.weight'", "choose a whole model")
        experts = self.experts("num_local_experts")
        width = experts["moe_intermediate_size"]
        return (
            config
            | experts
            | {
                "attention_bias": True,
                "intermediate_size": width,
                "layer_types": layer_types(windowed),
                "sliding_window": self.size("attention.sliding_window"),
            }
        )

    def intermediate_size(self) -> int:
        return self.expert_ffn()

    def rope_scaling(self) -> dict[str, Any] | None:
        scaling = super().rope_scaling()
        if scaling is None or scaling["rope_type"] != "yarn":
            raise self.refuse("does not scale its positions by yarn")
        if "attention_factor" in scaling:
            raise self.refuse("has an attention factor of its own")
        return {"beta_fast": 32.0, "beta_slow": 1.0, **scaling, "truncate": False}

    def outer(self) -> dict[str, Tensor]:
        return super().outer() | plain({"output.weight": "lm_head.weight"})

    def layer(self, number: int) -> dict[str, Tensor]:
        return LAYER


KNOWN = {"gpt-oss": GptOss}

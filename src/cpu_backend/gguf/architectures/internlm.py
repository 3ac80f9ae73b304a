"""InternLM 2, MiniCPM and GLM-4 as first published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpu_backend.gguf.architectures.base import Architecture
from cpu_backend.gguf.architectures.llama import Llama, interleaved
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

LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


class InternLM2(Llama):
    """InternLM 2 and 2.5, loaded as a Llama: the file has its three projections apart."""


class MiniCPM(Architecture):
    """MiniCPM 1, 2 and 4: scales of table, residuals and logits; transformers has no config class
    of this name."""

    class_name = "MiniCPMForCausalLM"

    def config(self) -> dict[str, Any]:
        config = super().config()
        return config | self.scales(config["hidden_size"])

    def scales(self, hidden: int) -> dict[str, float]:
        """By the names of the host; without fields, those of MiniCPM 2B."""
        root = self.num_layers**0.5
        depth = self.number("residual_scale", 1.4 / root) * root
        base = hidden / self.number("logit_scale", hidden / 256)
        if abs(base - round(base)) > 1e-3:
            raise self.refuse(f"divides its logits by {hidden / base}")
        return {
            "scale_emb": self.number("embedding_scale", 12.0),
            "scale_depth": round(depth, 5),
            "dim_model_base": round(base),
        }

    def rope_scaling(self) -> dict[str, Any] | None:
        if LONG not in self.file.tensors:
            return super().rope_scaling()
        if SHORT not in self.file.tensors:
            raise self.file.error(f"has no tensor '{SHORT}'", "choose a whole model")
        half = self.size("rope.dimension_count", self.head_dim) // 2
        context = self.size("context_length")
        return {
            "rope_type": "longrope",
            "long_factor": self.vector(LONG, half).tolist(),
            "short_factor": self.vector(SHORT, half).tolist(),
            "original_max_position_embeddings": self.size(
                "rope.scaling.original_context_length", context
            ),
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        return interleaved(super().layer(number))

    def ignored(self, name: str) -> bool:
        return name in (LONG, SHORT) or super().ignored(name)


class MiniCPM3(MiniCPM):
    """MiniCPM 3: latent attention."""

    class_name = "MiniCPM3ForCausalLM"
    model_type = "minicpm3"

    def config(self) -> dict[str, Any]:
        config = super().config()
        del config["head_dim"]
        rotated, latent = self.size("rope.dimension_count"), self.size("attention.kv_lora_rank")
        keys = self.size("attention.key_length") - rotated
        heads = config["num_attention_heads"]
        up = self.file.tensors.get("blk.0.attn_kv_b.weight")
        if up is None or up.shape[0] % heads or up.shape[0] // heads <= keys:
            raise self.file.error("has no values in 'blk.0.attn_kv_b.weight'")
        return config | {
            "q_lora_rank": self.size("attention.q_lora_rank"),
            "kv_lora_rank": latent,
            "qk_rope_head_dim": rotated,
            "qk_nope_head_dim": keys,
            "v_head_dim": up.shape[0] // heads - keys,
        }

    @property
    def head_dim(self) -> int:
        return self.size("attention.key_length")

    def rotary(self) -> dict[str, Any]:
        return {
            "rope_theta": self.number("rope.freq_base", 10000.0),
            "rope_scaling": self.rope_scaling(),
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        heads, values = config["num_attention_heads"], config["v_head_dim"]
        keys, rotated = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        return super().sizes(layer, config | {"head_dim": self.head_dim}) | {
            "q_rank": config["q_lora_rank"],
            "latent": config["kv_lora_rank"],
            "latent_rotated": config["kv_lora_rank"] + rotated,
            "keys_values": heads * (keys + values),
            "outputs": heads * values,
        }

    def layer(self, number: int) -> dict[str, Tensor]:
        tensors = {name: ATTENTION[name] for name in ("attn_norm.weight", "attn_output.weight")}
        return tensors | FFN_NORM | MLP | LATENT


# The first two are no layers of a name of their own in the host, so nothing quantizes them.
LATENT = {
    name: replace(tensor, shape=shape)
    for (name, tensor), shape in zip(
        (
            plain(
                {
                    "attn_q_a.weight": "self_attn.q_a_proj.weight",
                    "attn_kv_a_mqa.weight": "self_attn.kv_a_proj_with_mqa.weight",
                }
            )
            | named(
                {
                    "attn_q_a_norm.weight": "self_attn.q_a_layernorm.weight",
                    "attn_q_b.weight": "self_attn.q_b_proj.weight",
                    "attn_kv_a_norm.weight": "self_attn.kv_a_layernorm.weight",
                    "attn_kv_b.weight": "self_attn.kv_b_proj.weight",
                }
            )
        ).items(),
        (
            ("q_rank", "hidden"),
            ("latent_rotated", "hidden"),
            ("q_rank",),
            ("queries", "q_rank"),
            ("latent",),
            ("keys_values", "latent"),
        ),
        strict=True,
    )
}


class ChatGlm(Architecture):
    """ChatGLM 3 and GLM-4-9B, loaded as the latter: gate and up projection are one."""

    class_name = "GlmForCausalLM"
    model_type = "glm"
    partial_rotary = True

    def config(self) -> dict[str, Any]:
        biased = self.present("attn_qkv.bias") or self.present("attn_q.bias")
        return {"partial_rotary_factor": 1.0} | super().config() | {"attention_bias": biased}

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        return super().sizes(layer, config) | {"gate_up": 2 * config["intermediate_size"]}

    def layer(self, number: int) -> dict[str, Tensor]:
        mlp = {
            "ffn_up.weight": Tensor("mlp.gate_up_proj.weight", ("gate_up", "hidden")),
            "ffn_down.weight": MLP["ffn_down.weight"],
        }
        return ATTENTION | FFN_NORM | mlp | optional(QKV_BIASES)


KNOWN = {"internlm2": InternLM2, "minicpm": MiniCPM, "minicpm3": MiniCPM3, "chatglm": ChatGlm}

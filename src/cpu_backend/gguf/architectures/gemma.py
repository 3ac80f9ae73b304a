"""Gemma 1 to 3: norms around 0, tied tables."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import (
    HEAD_NORMS,
    Architecture,
    Tensor,
    centred,
    named,
)

FOUR_NORMS = named(
    {
        "post_attention_norm.weight": "post_attention_layernorm.weight",
        "ffn_norm.weight": "pre_feedforward_layernorm.weight",
        "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    }
)


class Gemma(Architecture):
    """Gemma 1."""

    class_name = "GemmaForCausalLM"
    model_type = "gemma"
    activation = "gelu_pytorch_tanh"

    def config(self) -> dict[str, Any]:
        return super().config() | {"hidden_activation": self.activation, "attention_bias": False}

    def outer(self) -> dict[str, Tensor]:
        return centred(super().outer())

    def layer(self, number: int) -> dict[str, Tensor]:
        return centred(super().layer(number))


class Gemma2(Gemma):
    """Gemma 2: four norms a layer, caps of scores and logits."""

    class_name = "Gemma2ForCausalLM"
    model_type = "gemma2"
    has_head = False

    def config(self) -> dict[str, Any]:
        return super().config() | {
            "attn_logit_softcapping": self.number("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": self.number("final_logit_softcapping", 30.0),
            "query_pre_attn_scalar": self.query_scale(),
            "sliding_window": self.size("attention.sliding_window", 4096),
        }

    def query_scale(self) -> int:
        """Of which queries are divided by the root: no file says it; that of the largest model is
        its hidden size per head (https://arxiv.org/abs/2408.00118, table 1)."""
        if self.num_layers == 46:
            return self.size("embedding_length") // self.size("attention.head_count")
        return self.head_dim

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | centred(FOUR_NORMS)


class Gemma3(Gemma2):
    """Gemma 3's text: norms of heads, five layers with windows to one without."""

    class_name = "Gemma3ForCausalLM"
    model_type = "gemma3_text"
    has_head = True

    def config(self) -> dict[str, Any]:
        config = super().config()
        cap = "final_logit_softcapping"
        pattern = self.size("attention.sliding_window_pattern", 6)
        full = [(layer + 1) % pattern == 0 for layer in range(self.num_layers)]
        return config | {
            "attn_logit_softcapping": None,
            cap: config[cap] if self.has(cap) else None,
            "layer_types": ["full_attention" if f else "sliding_attention" for f in full],
            "rope_local_base_freq": self.number("rope.freq_base_swa", 10000.0),
        }

    def query_scale(self) -> int:
        """As of Gemma 2; the largest model has 62 layers."""
        if self.num_layers == 62:
            return self.size("embedding_length") // self.size("attention.head_count")
        return self.head_dim

    def rotary(self) -> dict[str, Any]:
        config = super().rotary()
        if not self.has("rope.freq_base"):
            config["rope_theta"] = 1000000.0
        return config

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | centred(HEAD_NORMS)


KNOWN = {"gemma": Gemma, "gemma2": Gemma2, "gemma3": Gemma3}

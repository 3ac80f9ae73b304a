"""Qwen 2 and 3, dense and mixtures."""

from __future__ import annotations

from typing import Any

from cpu_backend.gguf.architectures.base import (
    ATTENTION,
    EXPERTS,
    FFN_NORM,
    HEAD_NORMS,
    QKV_BIASES,
    Architecture,
    Tensor,
    named,
)


class Qwen2(Architecture):
    """Qwen 2 and 2.5: biases of queries, keys and values."""

    class_name = "Qwen2ForCausalLM"
    model_type = "qwen2"

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | named(QKV_BIASES)


class Qwen3(Architecture):
    """Qwen 3: norms of heads."""

    class_name = "Qwen3ForCausalLM"
    model_type = "qwen3"

    def config(self) -> dict[str, Any]:
        return super().config() | {"attention_bias": False}

    def layer(self, number: int) -> dict[str, Tensor]:
        return super().layer(number) | HEAD_NORMS


class Qwen3Moe(Architecture):
    """Qwen 3 with experts in every layer."""

    class_name = "Qwen3MoeForCausalLM"
    model_type = "qwen3_moe"

    def config(self) -> dict[str, Any]:
        return (
            super().config()
            | self.experts()
            | {
                "attention_bias": False,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "norm_topk_prob": True,
            }
        )

    def layer(self, number: int) -> dict[str, Tensor]:
        return ATTENTION | FFN_NORM | HEAD_NORMS | EXPERTS


KNOWN = {"qwen2": Qwen2, "qwen3": Qwen3, "qwen3moe": Qwen3Moe}

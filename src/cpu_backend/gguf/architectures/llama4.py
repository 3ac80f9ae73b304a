"""Llama 4's text: experts in some layers, chunks of attention, layers without positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cpu_backend.gguf.architectures.base import ROPE_FACTORS, Architecture
from cpu_backend.gguf.architectures.tensors import ATTENTION, FFN_NORM, Tensor, named, plain

DENSE = named(
    {
        "ffn_gate.weight": "feed_forward.gate_proj.weight",
        "ffn_up.weight": "feed_forward.up_proj.weight",
        "ffn_down.weight": "feed_forward.down_proj.weight",
    }
)
EXPERTS = plain({"ffn_gate_inp.weight": "feed_forward.router.weight"}) | named(
    {
        "ffn_gate_exps.weight": "feed_forward.experts.{}.gate_proj.weight",
        "ffn_up_exps.weight": "feed_forward.experts.{}.up_proj.weight",
        "ffn_down_exps.weight": "feed_forward.experts.{}.down_proj.weight",
        "ffn_gate_shexp.weight": "feed_forward.shared_expert.gate_proj.weight",
        "ffn_up_shexp.weight": "feed_forward.shared_expert.up_proj.weight",
        "ffn_down_shexp.weight": "feed_forward.shared_expert.down_proj.weight",
    }
)
CHUNK = 8192  # of attention, which no file says
LARGE = 128  # experts of the model that has no norms of heads


class Llama4(Architecture):
    """Llama 4's mixtures."""

    class_name = "Llama4ForCausalLM"
    model_type = "llama4_text"

    @property
    def step(self) -> int:
        """Every so many layers there are experts."""
        return self.size("interleave_moe_layer_step")

    def config(self) -> dict[str, Any]:
        if self.has("attention.sliding_window"):
            raise self.refuse("says how its windows are")
        chunked = self.windowed(4)
        experts = self.experts("num_local_experts")
        size = experts["moe_intermediate_size"]
        return (
            super().config()
            | experts
            | {
                "attention_bias": False,
                "attention_chunk_size": CHUNK,
                "attn_scale": 0.1,
                "attn_temperature_tuning": True,
                "floor_scale": CHUNK,
                "interleave_moe_layer_step": self.step,
                "intermediate_size": size,
                "intermediate_size_mlp": self.size("feed_forward_length"),
                "layer_types": ["chunked_attention" if c else "full_attention" for c in chunked],
                "no_rope_layers": [int(c) for c in chunked],
                "use_qk_norm": experts["num_local_experts"] != LARGE,
            }
        )

    def rope_scaling(self) -> dict[str, Any] | None:
        if ROPE_FACTORS not in self.file.tensors:
            return super().rope_scaling()
        # Llama 3's, with no passage between the frequencies that are stretched and those that
        # are not.
        found = self.vector(ROPE_FACTORS, self.head_dim // 2)
        factor = float(found.max())
        frequencies = self.number("rope.freq_base", 10000.0) ** -(
            np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        )
        turns = CHUNK * frequencies / (2 * math.pi)
        if not np.allclose(found, np.where(turns > 1, 1.0, factor), rtol=1e-4):
            raise self.refuse(f"has factors of positions in '{ROPE_FACTORS}'")
        return {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": CHUNK,
        }

    def sizes(self, layer: int, config: dict[str, Any]) -> dict[str, int]:
        size = config["moe_intermediate_size"]
        dense = config["intermediate_size_mlp"]
        return super().sizes(layer, config) | {"ffn": dense, "shared_ffn": size}

    def layer(self, number: int) -> dict[str, Tensor]:
        kind = DENSE if (number + 1) % self.step else EXPERTS
        return ATTENTION | FFN_NORM | kind


KNOWN = {"llama4": Llama4}

"""Sizes of real models, from their published configurations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A decoder of the Llama family; sizes in elements."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    narrow: int = 0  # channels of values that are narrower than keys: latent attention

    @property
    def value_dim(self) -> int:
        return self.narrow or self.head_dim

    def linears(self) -> dict[str, tuple[int, int]]:
        """(out_features, in_features) of every weight that a token passes."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "qkv": (query + 2 * kv, self.hidden),
            "o": (self.hidden, query),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
            "logits": (self.vocabulary, self.hidden),
        }


MODELS = {
    "SmolLM2-135M": Model(576, 1536, 9, 3, 64, 49152),
    "Qwen3-0.6B": Model(1024, 3072, 16, 8, 128, 151936),
    "Llama-3.2-1B": Model(2048, 8192, 32, 8, 64, 128256),
    "Qwen3-4B": Model(2560, 9728, 32, 8, 128, 151936),
    "Llama-3.1-8B": Model(4096, 14336, 32, 8, 128, 128256),
}
# For attention alone: their projections are others.
LATENT_MODELS = {
    "DeepSeek-V2-Lite": Model(2048, 10944, 16, 1, 576, 102400, narrow=512),
    "DeepSeek-V3": Model(7168, 18432, 128, 1, 576, 129280, narrow=512),
}

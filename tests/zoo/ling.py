"""Ling 1 and 2.5, made of layers that ``transformers`` has and of what it lacks, in plain torch."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch.nn import functional
from transformers import (
    AutoConfig,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter


@strict
class Ling1Config(Glm4MoeConfig):
    """Published checkpoints bring it as code of their own, as those of Ling 2.5 do."""

    model_type = "bailing_moe"
    n_group: int | None = None
    topk_group: int | None = None


class Ling25Config(DeepseekV3Config):
    """head_dim is that of linear attention, the other's follows from its parts."""

    model_type = "bailing_hybrid"


for config, like in ((Ling1Config, "glm4_moe"), (Ling25Config, "deepseek_v3")):
    # transformers from 5.20 on knows Ling 3, which shares the name of Ling 2.5.
    AutoConfig.register(config.model_type, config, exist_ok=True)
    # So that experts are written one by one.
    register_checkpoint_conversion_mapping(
        config.model_type, get_checkpoint_conversion_mapping(like), overwrite=True
    )


class BailingMoeForCausalLM(Glm4MoeForCausalLM):
    """Ling 1: GLM-4.5 with another router."""

    config_class = Ling1Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers[config.first_k_dense_replace :]:
            layer.mlp.gate = SoftmaxRouter(config)


class SoftmaxRouter(Glm4MoeTopkRouter):
    """Probabilities of all experts, of which the largest are made to add up to 1."""

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``hidden_states`` [..., hidden]; logits, weights and numbers of each token's experts."""
        logits = functional.linear(hidden_states.flatten(0, -2).float(), self.weight.float())
        weights, chosen = logits.softmax(-1).topk(self.top_k)
        return logits, weights / weights.sum(-1, keepdim=True), chosen


class BailingMoeV2_5ForCausalLM(DeepseekV3ForCausalLM):  # noqa: N801 (the published name)
    """Ling 2.5: DeepSeek V3, but in each group of layers all but the last attend linearly."""

    config_class = Ling25Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        latent = copy.copy(config)
        latent.head_dim = config.qk_rope_head_dim
        self.model.rotary_emb = DeepseekV3RotaryEmbedding(config=latent)
        for i, layer in enumerate(self.model.layers):
            if (i + 1) % config.layer_group_size:
                layer.self_attn = LightningAttention(config, i)


class LightningAttention(torch.nn.Module):
    """Linear attention whose heads forget at a rate of their own, which falls from layer to
    layer."""

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.heads, self.head_dim = config.num_attention_heads, config.head_dim
        self.groups, self.eps = config.group_norm_size, config.rms_norm_eps
        self.rotated = int(self.head_dim * config.rope_parameters["partial_rotary_factor"])
        self.theta = config.rope_parameters["rope_theta"]
        self.silu = config.linear_silu
        depth = layer / (config.num_hidden_layers - 1)
        self.rates = [rate * (1 - depth + 1e-5) for rate in rates(self.heads)]
        width = self.heads * self.head_dim
        self.query_key_value = torch.nn.Linear(config.hidden_size, 3 * width, bias=False)
        self.query_layernorm = torch.nn.RMSNorm(self.head_dim, self.eps)
        self.key_layernorm = torch.nn.RMSNorm(self.head_dim, self.eps)
        self.g_proj = torch.nn.Linear(config.hidden_size, width, bias=False)
        self.g_norm = torch.nn.RMSNorm(width, self.eps)
        self.dense = torch.nn.Linear(width, config.hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """``hidden_states`` [1, tokens, hidden]; the same and no weights of attention."""
        x = hidden_states[0]
        mixed = self.query_key_value(x)
        if self.silu:
            mixed = functional.silu(mixed)
        query, key, value = mixed.view(len(x), 3, self.heads, self.head_dim).unbind(1)
        query = self._rotate(self.query_layernorm(query)) / math.sqrt(self.head_dim)
        key = self._rotate(self.key_layernorm(key))
        attended = self._attend(query.double(), key.double(), value.double()).to(x.dtype)
        groups = attended.view(len(x), self.groups, -1)
        normalized = functional.rms_norm(groups, groups.shape[-1:], eps=self.eps).flatten(1)
        gated = normalized * self.g_norm.weight * self.g_proj(x).sigmoid()
        return self.dense(gated)[None], None

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """All [tokens, heads, head_dim]."""
        kept = torch.tensor(self.rates, dtype=torch.float64).neg().exp()[:, None, None]
        state = torch.zeros(self.heads, self.head_dim, self.head_dim, dtype=torch.float64)
        results = []
        for q, k, v in zip(query, key, value, strict=True):
            state = kept * state + k[:, :, None] * v[:, None, :]
            results.append((q[:, :, None] * state).sum(1))
        return torch.stack(results)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """The first channels of each head of x [tokens, heads, head_dim], i with i + half of
        them."""
        half = self.rotated // 2
        speeds = self.theta ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = (torch.arange(len(x), dtype=torch.float64)[:, None] * speeds)[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b, rest = x.split([half, half, self.head_dim - self.rotated], dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


def rates(heads: int) -> list[float]:
    """Those of ALiBi: a geometric sequence for a power of two of heads, and what is missing from
    every other one of the next power's."""
    whole = 2 ** int(math.log2(heads))
    between = [2 ** (-8 * (i + 0.5) / whole) for i in range(heads - whole)]
    return [2 ** (-8 * (i + 1) / whole) for i in range(whole)] + between

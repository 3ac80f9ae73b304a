"""K2 Horizon: GLM-4.5's mixtures behind an attention of its own, in plain torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoConfig, Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)


class K2HorizonConfig(Glm4MoeConfig):
    """Published checkpoints bring it as code of their own."""

    model_type = "k2_horizon"


AutoConfig.register(K2HorizonConfig.model_type, K2HorizonConfig)
# So that experts are written one by one.
register_checkpoint_conversion_mapping(
    K2HorizonConfig.model_type, get_checkpoint_conversion_mapping("glm4_moe")
)


class K2HorizonForCausalLM(Glm4MoeForCausalLM):
    """With norms of parts of the channels."""

    config_class = K2HorizonConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        groups = config.layernorm_num_groups
        self.model.norm = GroupNorm(config.hidden_size, groups, config)
        for layer in self.model.layers:
            layer.self_attn = Attention(config)
            for name in ("input_layernorm", "post_attention_layernorm"):
                setattr(layer, name, GroupNorm(config.hidden_size, groups, config))


class GroupNorm(torch.nn.Module):
    """RMS norms of parts of the channels."""

    def __init__(self, size: int, groups: int, config: Any) -> None:
        super().__init__()
        self.groups, self.eps = groups, config.rms_norm_eps
        self.weight = torch.nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., size]."""
        parts = x.unflatten(-1, (self.groups, -1))
        normalized = functional.rms_norm(parts, parts.shape[-1:], eps=self.eps)
        return normalized.flatten(-2) * self.weight


class Attention(torch.nn.Module):
    """With a rotation of some channels, and a gate."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.rotated = config.head_dim, config.rope_head_dim
        self.theta = config.rope_parameters["rope_theta"]
        hidden, width = config.hidden_size, self.heads * self.head_dim
        key_width = self.key_heads * self.head_dim
        self.q_proj = torch.nn.Linear(hidden, width, bias=False)
        self.k_proj = torch.nn.Linear(hidden, key_width, bias=False)
        self.q_norm = GroupNorm(width, self.heads, config)
        self.k_norm = GroupNorm(key_width, self.key_heads, config)
        self.v_proj = torch.nn.Linear(hidden, key_width, bias=False)
        self.gate_proj = torch.nn.Linear(hidden, width, bias=False)
        self.o_proj = torch.nn.Linear(width, hidden, bias=False)

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        """``hidden_states`` [1, tokens, hidden]; the same and no weights of attention."""
        x = hidden_states[0]
        query = self._rotate(self.q_norm(self.q_proj(x)).view(len(x), self.heads, -1))
        key = self._rotate(self.k_norm(self.k_proj(x)).view(len(x), self.key_heads, -1))
        value = self.v_proj(x).view(len(x), self.key_heads, -1)
        query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        gate = functional.softplus(self.gate_proj(x), beta=math.log(2))
        return self.o_proj(attended[0].transpose(0, 1).flatten(1) * gate)[None], None

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [tokens, heads, head_dim] the first channels of both halves of each head."""
        pairs = self.rotated // 2
        speeds = self.theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = (torch.arange(len(x), dtype=torch.float64)[:, None] * speeds)[:, None]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        sizes = [pairs, self.head_dim // 2 - pairs] * 2
        a, rest_a, b, rest_b = x.split(sizes, dim=-1)
        return torch.cat([a * cos - b * sin, rest_a, b * cos + a * sin, rest_b], dim=-1)

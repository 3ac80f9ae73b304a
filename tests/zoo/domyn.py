"""Domyn Edge: Llama with norms around each half, some layers of which turn nothing or have windows,
in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, apply_rotary_pos_emb


class DomynEdgeConfig(LlamaConfig):
    """Published checkpoints bring it as code of their own."""

    model_type = "domyn_edge"


AutoConfig.register(DomynEdgeConfig.model_type, DomynEdgeConfig)


class DomynEdgeForCausalLM(LlamaForCausalLM):
    """With layers of its own."""

    config_class = DomynEdgeConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers = torch.nn.ModuleList(
            Layer(config, i) for i in range(config.num_hidden_layers)
        )


class Layer(torch.nn.Module):
    """Norms before and after each half."""

    def __init__(self, config: Any, i: int) -> None:
        super().__init__()
        self.attention = Attention(config, i)
        self.feedforward = LlamaMLP(config)
        for name in ("attention", "feedforward"):
            for place in ("pre", "post"):
                norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
                self.add_module(f"{place}_{name}_norm", norm)

    def forward(self, x: torch.Tensor, position_embeddings: Any, **_: Any) -> torch.Tensor:
        """``x`` [1, n, hidden]; the same."""
        attended = self.attention(self.pre_attention_norm(x), position_embeddings)
        x = x + self.post_attention_norm(attended)
        return x + self.post_feedforward_norm(self.feedforward(self.pre_feedforward_norm(x)))


class Attention(torch.nn.Module):
    """Norms of queries, which have no weight, and keys."""

    def __init__(self, config: Any, i: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.turns = config.position_layers[i] == "rope"
        self.before = config.window_sizes[i][0]
        hidden, width = config.hidden_size, config.num_attention_heads * self.head_dim
        key_width = config.num_key_value_heads * self.head_dim
        self.q_proj = torch.nn.Linear(hidden, width, bias=False)
        self.k_proj = torch.nn.Linear(hidden, key_width, bias=False)
        self.v_proj = torch.nn.Linear(hidden, key_width, bias=False)
        self.o_proj = torch.nn.Linear(width, hidden, bias=False)
        self.k_norm = LlamaRMSNorm(self.head_dim, config.rms_norm_eps)
        self.eps = config.rms_norm_eps

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """``x`` [1, n, hidden]; the same."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query = functional.rms_norm(query, (self.head_dim,), eps=self.eps)
        key = self.k_norm(key)
        if self.turns:
            query, key = apply_rotary_pos_emb(query, key, *turns)
        n = x.shape[1]
        ago = torch.arange(n)[:, None] - torch.arange(n)
        seen = (ago >= 0) & (ago <= (self.before if self.before > 0 else n))
        attended = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, enable_gqa=True
        )
        return self.o_proj(attended.transpose(1, 2).flatten(2))

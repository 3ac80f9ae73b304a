"""Dory: layers on a sphere, some of which run several times, in plain torch."""

from __future__ import annotations

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch.nn import functional
from transformers import AutoConfig, LlamaConfig, LlamaPreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

EPSILON = 1e-6


@strict
class DoryConfig(LlamaConfig):
    """The host brings its own."""

    model_type = "dory"

    def validate_layer_type(self) -> None:
        """A layer may be "mlp", which ``transformers`` does not know."""


AutoConfig.register(DoryConfig.model_type, DoryConfig)


class DoryForCausalLM(LlamaPreTrainedModel):
    """Scores are products with vectors of length 1, so a factor of each word follows."""

    config_class = DoryConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.backbone = Backbone(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.logit_scale = torch.nn.Parameter(torch.full((config.vocab_size,), 4.0))

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        """``input_ids`` [1, n]; logits [1, n, words]."""
        scale = self.lm_head.logit_scale.float() / self.config.initializer_range
        return CausalLMOutput(logits=self.lm_head(self.backbone(input_ids[0]))[None] * scale)


class Backbone(torch.nn.Module):
    """Layers of the begin, of the loop, which adds what it was given each time, and of the end."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = torch.nn.ModuleList(Layer(config, kind) for kind in config.layer_types)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``ids`` [n]; states [n, hidden]."""
        begin = self.config.n_input_layers
        end = begin + self.config.n_recurrent_layers
        states = given = self._run(self.embeddings(ids), 0, begin)
        for _ in range(self.config.n_recurrent_loops):
            states = unit(self._run(unit(states + given), begin, end))
        return self._run(states, end, len(self.layers))

    def _run(self, states: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        for layer in self.layers[begin:end]:
            states = layer(states)
        return states


class Layer(torch.nn.Module):
    """Moves towards what its half finds, each channel as far as its own number says."""

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        self.mixer = FeedForward(config) if kind == "mlp" else Attention(config, kind)
        self.alpha_name = "mlp_alpha" if kind == "mlp" else "attn_alpha"
        self.scale = config.ngpt_alpha_init / config.initializer_range
        start = torch.full((config.hidden_size,), config.initializer_range)
        self.register_parameter(self.alpha_name, torch.nn.Parameter(start))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """``states`` [n, hidden]; the same."""
        share = (self.get_parameter(self.alpha_name).float() * self.scale).abs()
        here, there = unit(states), unit(self.mixer(states))
        return unit(torch.lerp(here.float(), there.float(), share)).to(states.dtype)


class Attention(torch.nn.Module):
    """Turned queries and keys of length 1, the former times a factor of each channel."""

    def __init__(self, config: Any, kind: str) -> None:
        super().__init__()
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.window = config.sliding_window if kind == "sliding_attention" else None
        rope = config.rope_parameters[kind]
        self.theta = rope["rope_theta"]
        self.rotated = int(self.head_dim * rope["partial_rotary_factor"])
        hidden, width = config.hidden_size, self.heads * self.head_dim
        key_width = self.key_heads * self.head_dim
        self.q_proj = torch.nn.Linear(hidden, width, bias=False)
        self.k_proj = torch.nn.Linear(hidden, key_width, bias=False)
        self.v_proj = torch.nn.Linear(hidden, key_width, bias=False)
        self.g_proj = torch.nn.Linear(hidden, width, bias=False)
        self.o_proj = torch.nn.Linear(width, hidden, bias=False)
        start = config.initializer_range
        self.sqk = torch.nn.Parameter(torch.full((width,), start))
        self.s_gate = torch.nn.Parameter(torch.full((width,), start))
        self.of_queries = self.head_dim**0.5 / start
        self.of_gates = (config.attention_output_gate_logit_scale_init**0.5) / start

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, hidden]; the same."""
        query, key, value = (
            project(x).view(len(x), -1, self.head_dim).transpose(0, 1)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        factor = (self.sqk.float() * self.of_queries).square().view(self.heads, 1, self.head_dim)
        query = (unit(self._turn(query)).float() * factor).to(x.dtype)
        key = unit(self._turn(key))
        ago = torch.arange(len(x))[:, None] - torch.arange(len(x))
        seen = (ago >= 0) & (ago < (self.window or len(x)))
        attended = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen, enable_gqa=True
        )
        gate = self.g_proj(x).float() * (self.s_gate.float() * self.of_gates).square()
        attended = attended[0].transpose(0, 1).flatten(1).float() * gate.sigmoid()
        return self.o_proj(unit(attended.to(x.dtype)))

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        """Of x [heads, n, head_dim] the first channels, as halves."""
        pairs = self.rotated // 2
        speeds = self.theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * speeds
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b, rest = x.split([pairs, pairs, self.head_dim - self.rotated], dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


class FeedForward(torch.nn.Module):
    """Gated, of both halves each channel times a factor of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.intermediate_size
        self.gate_proj = torch.nn.Linear(hidden, width, bias=False)
        self.up_proj = torch.nn.Linear(hidden, width, bias=False)
        self.down_proj = torch.nn.Linear(width, hidden, bias=False)
        self.suv_gate = torch.nn.Parameter(torch.ones(width))
        self.suv_up = torch.nn.Parameter(torch.ones(width))
        self.factor = hidden**0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` [n, hidden]; the same."""
        gate = self.gate_proj(x).float() * (self.suv_gate.float() * self.factor)
        up = self.up_proj(x).float() * (self.suv_up.float() * self.factor)
        return self.down_proj(unit((functional.silu(gate) * up).to(x.dtype)))


def unit(x: torch.Tensor) -> torch.Tensor:
    """``x`` [..., channels] with rows of length 1."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + EPSILON)).to(x.dtype)

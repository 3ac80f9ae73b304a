"""Models made of layers that ``transformers`` has, put together in another way, in plain torch."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch.nn import functional
from transformers import (
    AutoConfig,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Glm4MoeConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Mistral4Config,
    Mistral4ForCausalLM,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, apply_rotary_pos_emb

from tests.zoo.ling import BailingMoeForCausalLM, SoftmaxRouter


class Block(dict[str, Any]):
    """A part of a config whose entries are read as attributes, as the published code has it."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class DeciConfig(LlamaConfig):
    """Published checkpoints bring it as code of their own, as those of the others do."""

    model_type = "nemotron-nas"

    def __post_init__(self, **kwargs: Any) -> None:
        blocks = kwargs.pop("block_configs", [])
        super().__post_init__(**kwargs)
        self.block_configs = [
            Block({part: Block(said) for part, said in block.items()}) for block in blocks
        ]


class Deepseek1Config(Glm4MoeConfig):
    model_type = "deepseek"


class MistralLarge3Config(Mistral4Config):
    """The host makes one of DeepSeek V3 of Mistral's own."""

    model_type = "mistral_large_3"


class Plamo3Config(Gemma3TextConfig):
    model_type = "plamo3"


for config in (DeciConfig, Deepseek1Config, MistralLarge3Config, Plamo3Config):
    AutoConfig.register(config.model_type, config)
for config, like in ((Deepseek1Config, "glm4_moe"), (MistralLarge3Config, "deepseek_v3")):
    # So that experts are written one by one.
    register_checkpoint_conversion_mapping(
        config.model_type, get_checkpoint_conversion_mapping(like)
    )


class MistralLarge3ForCausalLM(Mistral4ForCausalLM):
    config_class = MistralLarge3Config


class SolarForCausalLM(LlamaForCausalLM):
    """Llama, but some layers are given some of what an earlier one was given."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        kept: dict[str, torch.Tensor] = {}
        for i, layer in enumerate(self.model.layers):
            layer.register_forward_pre_hook(functools.partial(_mix, config, kept, i))


def _mix(
    config: Any, kept: dict[str, torch.Tensor], i: int, _: Any, given: tuple[torch.Tensor]
) -> tuple[torch.Tensor]:
    """What layer ``i`` is given instead of ``given``."""
    (states,) = given
    share = config.bskcn_tv[1]  # the first is for training
    for source in ("bskcn_1", "bskcn_2"):
        if i in getattr(config, source):
            kept[source] = states
    for target, source in (("bskcn_3", "bskcn_1"), ("bskcn_4", "bskcn_2")):
        if i in getattr(config, target):
            states = share * kept[source] + (1 - share) * states
    return (states,)


class DeciLMForCausalLM(LlamaForCausalLM):
    """Llama with layers of different sizes, some without one half."""

    config_class = DeciConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model.layers = torch.nn.ModuleList(
            _deci_layer(config, i) for i in range(config.num_hidden_layers)
        )


def _deci_layer(config: Any, i: int) -> LlamaDecoderLayer:
    attention, feed_forward = config.block_configs[i].attention, config.block_configs[i].ffn
    own = copy.deepcopy(config)
    if not attention.no_op:
        own.num_key_value_heads = config.num_attention_heads // attention.n_heads_in_group
    if not feed_forward.no_op:
        size = int(2 * feed_forward.ffn_mult * config.hidden_size / 3)
        own.intermediate_size = -(-size // 256) * 256
    layer = LlamaDecoderLayer(own, i)
    if attention.no_op:
        layer.input_layernorm, layer.self_attn = torch.nn.Identity(), NoAttention()
    if feed_forward.no_op:
        layer.post_attention_layernorm, layer.mlp = torch.nn.Identity(), Nothing()
    return layer


class Nothing(torch.nn.Module):
    """Adds nothing."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(states)


class NoAttention(torch.nn.Module):
    """Adds nothing, as attention is called."""

    def forward(self, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None


class Plamo3ForCausalLM(Gemma3ForCausalLM):
    """Gemma 3 without a scale of its embeddings, and with norms of what layers add that start
    small."""

    config_class = Plamo3Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        embedding = self.model.embed_tokens
        embedding.scalar_embed_scale = 1.0
        embedding.embed_scale.fill_(1.0)
        for layer in self.model.layers:
            layer.post_attention_layernorm = ShiftedNorm(config, 5**-1)
            layer.post_feedforward_layernorm = ShiftedNorm(config, 5**-1.5)


class ShiftedNorm(Gemma3RMSNorm):
    """Adds ``shift`` to its weights, not 1."""

    def __init__(self, config: Any, shift: float) -> None:
        super().__init__(config.hidden_size, config.rms_norm_eps)
        self.shift = shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self._norm(x.float()) * (self.shift + self.weight.float())).type_as(x)


class DeepseekForCausalLM(BailingMoeForCausalLM):
    """DeepSeek MoE 1: Ling 1, but experts' weights stay probabilities."""

    config_class = Deepseek1Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers[config.first_k_dense_replace :]:
            layer.mlp.gate = ProbabilityRouter(config)


class ProbabilityRouter(SoftmaxRouter):
    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``hidden_states`` [..., hidden]; logits, weights and numbers of each token's experts."""
        logits, _, chosen = super().forward(hidden_states)
        return logits, logits.softmax(-1).gather(-1, chosen), chosen


class IQuestLoopCoderForCausalLM(LlamaForCausalLM):
    """Llama whose layers run several times."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LoopModel(config)


class LoopModel(LlamaModel):
    """After the first time, a gate of each head mixes attention to the first time's keys with that
    to a window of new ones."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.gate_projections = torch.nn.ModuleList(
            torch.nn.Linear(config.head_dim, config.num_attention_heads) for _ in self.layers
        )

    def forward(self, input_ids: torch.Tensor, **rest: Any) -> BaseModelOutputWithPast:
        """``input_ids`` [1, n]; states [1, n, hidden]."""
        states = self.embed_tokens(input_ids)
        places = torch.arange(input_ids.shape[1])
        turns = self.rotary_emb(states, position_ids=places[None])
        ago = places[:, None] - places
        near = (ago >= 0) & (ago < self.config.loop_window_size)
        first: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for _ in range(self.config.loop_num):
            for i, layer in enumerate(self.layers):
                query, key, value = _heads(layer.self_attn, layer.input_layernorm(states), turns)
                if i not in first:
                    first[i] = key, value
                    attended = _attend(query, key, value, ago >= 0)
                else:
                    gate = self.gate_projections[i]
                    logits = (query * gate.weight[:, None]).sum(-1) + gate.bias[:, None]
                    share = logits.sigmoid()[..., None]
                    attended = share * _attend(query, *first[i], ago >= 0)
                    attended = attended + (1 - share) * _attend(query, key, value, near)
                states = states + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
                states = states + layer.mlp(layer.post_attention_layernorm(states))
        return BaseModelOutputWithPast(last_hidden_state=self.norm(states))


def _heads(
    attention: Any, states: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values [1, heads, n, head_dim], the former two turned."""
    query, key, value = (
        project(states).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return *apply_rotary_pos_emb(query, key, *turns), value


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor
) -> torch.Tensor:
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, enable_gqa=True
    )

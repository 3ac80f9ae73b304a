"""Gated delta nets (Qwen3-Next, Qwen3.5) run on this backend's ops, in every dtype.

What: ``QwenGatedDeltaNetAttention.forward_cpu``, with layers/gated_delta.py as its core.
Why: the host's asks for bf16, and its op hides from a recorded step what it calls.
Since: 0.32
Until: never: metadata and ops are this backend's own.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn",
    "QwenGatedDeltaNetAttention.forward_cpu(self, hidden_states)",
    when=When.COMPUTING,
)
def forward(original: Any) -> Any:
    """Projections and norm are the host's modules."""

    def forward_cpu(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.in_proj_qkvz(hidden_states)
        gates, _ = self.in_proj_ba(hidden_states)
        if self.gqa_interleaved_layout:
            query, key, value, z, b, a = self.fix_query_key_value_ordering(mixed, gates)
            mixed = torch.cat([part.reshape(len(part), -1) for part in (query, key, value)], dim=1)
        else:
            mixed, z = split(self, mixed)
            b, a = gates.chunk(2, dim=1)
        result: torch.Tensor = self._output_projection(core(self, mixed, a, b, heads_of(self)), z)
        return result

    return forward_cpu


def split(layer: Any, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, keys and values [tokens, channels], and gates [tokens, heads, head_v_dim]."""
    channels = (2 * layer.key_dim + layer.value_dim) // layer.tp_size
    return mixed[:, :channels], mixed[:, channels:].unflatten(1, (-1, layer.head_v_dim))


def heads_of(layer: Any) -> Any:
    from cpu_backend.layers.gated_delta import Heads

    return Heads(
        layer.num_k_heads // layer.tp_size,
        layer.num_v_heads // layer.tp_size,
        layer.head_k_dim,
        layer.head_v_dim,
    )


def core(
    layer: Any,
    mixed: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    heads: Any,
    *,
    beta_range: float = 1.0,
) -> torch.Tensor:
    """What layers/gated_delta.py computes with a layer of the host's; zeros while the host
    profiles."""
    from cpu_backend.attention.states import step_of
    from cpu_backend.layers import gated_delta

    if (found := step_of(layer)) is None:
        return mixed.new_zeros(len(mixed), heads.heads, heads.value_dim)
    step, conv_states, states = found
    weights = gated_delta.Weights(
        layer.conv1d.weight,
        layer.conv1d.bias,
        layer.A_log.float(),  # OLMo Hybrid's has the model's dtype
        layer.dt_bias,
        beta_range,
    )
    # The host's last two dimensions are in the other order; the pages are this backend's.
    states = states.view(len(states), heads.heads, heads.key_dim, heads.value_dim)
    return gated_delta.attend(mixed, a, b, heads, weights, conv_states, states, step)

"""Mamba-2 layers (Granite 4, Falcon-H1, Nemotron-H, Zamba 2) run on this backend's ops.

What: ``MambaMixer2.conv_ssm_forward``, with layers/state_space.py, and ``get_kv_cache_spec``.
Why: the host computes prompts and single tokens by different functions, which round differently,
    and prompts one request after the other in Python.  For its prefix cache its layers put a state
    aside in the middle of a step, where this backend's have steps end there.
Since: 0.32
Until: never: metadata and ops are this backend's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from cpu_backend.host.seam import Hosts, When, patch


@patch(
    "vllm.model_executor.layers.mamba.mamba_mixer2",
    "MambaMixer2.conv_ssm_forward(self, projected_states, output)",
    when=When.COMPUTING,
)
def convolve_and_scan(original: Any) -> Any:
    """Projections, gate and norm are the host's."""
    from cpu_backend.attention.states import step_of
    from cpu_backend.layers.state_space import Recurrence, scan
    from cpu_backend.state_ops import causal_conv

    def conv_ssm_forward(self: Any, projected_states: torch.Tensor, output: torch.Tensor) -> None:
        if (found := step_of(self)) is None:
            output.zero_()
            return
        step, conv_states, states = found
        tokens = step.num_actual_tokens
        mixed, dt = projected_states[:tokens, self.tped_intermediate_size :].split(
            [self.tped_conv_size, self.tped_dt_size], dim=1
        )
        mixed = causal_conv(
            mixed, self.conv_weights, self.conv1d.bias, conv_states, step.sequences, silu=True
        )
        x, b, c = self.split_hidden_states_B_C_fn(mixed)
        groups = (self.n_groups // self.tp_size, -1)
        scan(
            output[:tokens].unflatten(1, (-1, self.head_dim)),
            x.unflatten(1, (-1, self.head_dim)),
            dt,
            b.unflatten(1, groups),
            c.unflatten(1, groups),
            Recurrence(self.A, self.D, self.dt_bias),
            states,
            step,
        )

    return conv_ssm_forward


@patch(
    "vllm.model_executor.layers.mamba.mamba_mixer2",
    "MambaMixer2.get_kv_cache_spec(self, vllm_config)",
    when=When.COMPUTING,
    hosts=Hosts(since=(0, 32)),  # none is put aside before
)
def without_states_aside(original: Any) -> Any:
    """As of other layers with states."""

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        spec = original(self, vllm_config)
        if not getattr(spec, "num_prefill_checkpoint_blocks", 0):
            return spec
        return replace(spec, num_prefill_checkpoint_blocks=0, prefill_checkpoint_alignment=None)

    return get_kv_cache_spec

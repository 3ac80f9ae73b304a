"""Mamba layers (Mamba, Falcon Mamba, Jamba) run on this backend's ops.

What: ``MambaMixer.forward_impl``, with layers/state_space.py.
Why: the host has no scan of prompts for CPUs, and computes single tokens by another function.
Since: 0.32
Until: never: metadata and ops are this backend's own.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.mamba.mamba_mixer",
    "MambaMixer.forward_impl(self, hidden_states, output)",
    when=When.COMPUTING,
)
def convolve_and_scan(original: Any) -> Any:
    """Projections and norms are the host's."""
    from cpu_backend.attention.states import step_of
    from cpu_backend.layers.state_space import Recurrence, scan
    from cpu_backend.state_ops import causal_conv

    def forward_impl(self: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        if (found := step_of(self)) is None:
            output.zero_()
            return
        step, conv_states, states = found
        tokens = step.num_actual_tokens
        x, gate = self.in_proj(hidden_states[:tokens])[0].chunk(2, dim=1)
        weight = self.conv1d.weight.squeeze(1)
        x = causal_conv(x, weight, self.conv1d.bias, conv_states, step.sequences, silu=True)
        dt, b, c = self._ssm_transform(x)
        scanned = torch.empty_like(x)
        bias = self._time_proj_bias()
        scan(
            scanned.unsqueeze(1),
            x.unsqueeze(1),
            dt.t().unsqueeze(1),
            b.unsqueeze(1),
            c.unsqueeze(1),
            Recurrence(self.A[None], self.D[None], None if bias is None else bias[None]),
            states.unsqueeze(1),
            step,
            gate.unsqueeze(1),
        )
        output[:tokens] = self.out_proj(scanned)[0]

    return forward_impl

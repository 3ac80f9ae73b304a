"""Short convolutions (LFM2) run on this backend's op.

What: ``ShortConv.forward_native``, with its op.
Why: the host computes prompts and single tokens by different functions, which round differently,
    and prompts one request after the other in Python.
Since: 0.32
Until: never: metadata and op are this backend's own.
"""

from __future__ import annotations

from typing import Any

import torch

from cpu_backend.host.seam import When, patch


@patch(
    "vllm.model_executor.layers.mamba.short_conv",
    "ShortConv.forward_native(self, hidden_states, output)",
    when=When.COMPUTING,
)
def gated_convolution(original: Any) -> Any:
    """Projections are the host's."""
    from cpu_backend.attention.states import step_of
    from cpu_backend.state_ops import causal_conv

    def forward_native(self: Any, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        if (found := step_of(self)) is None:
            output.zero_()
            return
        step, conv_states, _ = found
        tokens = step.num_actual_tokens
        b, c, x = self.in_proj(hidden_states[:tokens])[0].chunk(3, dim=1)
        weight = self.conv.weight.squeeze(1)
        convolved = causal_conv(
            b * x, weight, self.conv.bias, conv_states, step.sequences, silu=False
        )
        output[:tokens] = self.out_proj(c * convolved)[0]

    return forward_native

"""The ops of layers that carry a state from token to token (``csrc/torch_ops/causal_conv.cpp``,
``delta_rule.cpp``, ``state_scan.cpp``)."""

from __future__ import annotations

from typing import NamedTuple

import torch


class StepSequences(NamedTuple):
    """The sequences of a step, and where each keeps its state.

    starts [sequences + 1] int32: the first token of each, and the end; slots [sequences] int32;
    resumes [sequences] bool: whether those hold a state from before.

    accepted [sequences] int32: of its step before, how many tokens a sequence has kept, one at
    least.  Its slots are a row, [sequences, slots]: it begins with the state after the last token
    kept, and leaves the one after its own token t in slot t.  0 or None: it begins and ends in its
    first slot.
    """

    starts: torch.Tensor
    slots: torch.Tensor
    resumes: torch.Tensor
    accepted: torch.Tensor | None = None


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    sequences: StepSequences,
    *,
    silu: bool,
) -> torch.Tensor:
    """[tokens, channels]: x convolved along each sequence; weight [channels, taps], or with a
    dimension of one between.  states [slots, channels, >= taps - 1]: the last inputs."""
    starts, slots, resumes, accepted = sequences
    convolved: torch.Tensor = torch.ops.cpu_backend.causal_conv.default(
        x, weight, bias, states, starts, slots, resumes, accepted, silu
    )
    return convolved


def gated_delta_rule(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    weights: tuple[torch.Tensor, torch.Tensor],
    states: torch.Tensor,
    sequences: StepSequences,
    beta_range: float = 1.0,
) -> None:
    """The gated delta rule over the sequences of a step, into out [tokens, heads, value_dim].

    query, key [tokens, key_heads, key_dim]; gates: a and b [tokens, heads]; weights: a_log and
    dt_bias [heads]; states [slots, heads, key_dim, value_dim].  ``beta_range``: beta lies between 0
    and this.  With a [tokens, heads, key_dim] and dt_bias [heads * key_dim] every channel of the
    keys decays by itself (Kimi's delta attention).
    """
    starts, slots, resumes, accepted = sequences
    torch.ops.cpu_backend.gated_delta_rule.default(
        out, query, key, value, *gates, *weights, states, slots, resumes, starts, accepted,
        beta_range,
    )  # fmt: skip


def state_scan(
    out: torch.Tensor,
    states: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor | None,
    gate: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    sequences: StepSequences,
    *,
    softplus: bool = True,
) -> None:
    """The state-space recurrence of a step's sequences into ``out``; see
    ``csrc/kernels/state_scan.h`` for the shapes.  softplus: of the time steps."""
    torch.ops.cpu_backend.state_scan(
        out, states, x, dt, a, b, c, d, gate, dt_bias, softplus, *sequences
    )

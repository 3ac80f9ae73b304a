"""The recurrence of state-space models, whose op takes a whole step at once.

A decode is a sequence of one token, so what a token's layer gives depends neither on which requests
a step has nor on where the step before ended (``csrc/kernels/state_scan.h``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cpu_backend import state_ops


@dataclass(frozen=True)
class Recurrence:
    """The layer's own: [heads], for all channels of a head, or a [heads, channels, states], d and
    dt_bias [heads, channels]; dt_bias is added to time steps."""

    a: torch.Tensor
    d: torch.Tensor
    dt_bias: torch.Tensor | None


def scan(
    out: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    recurrence: Recurrence,
    states: torch.Tensor,
    step: Any,
    gate: torch.Tensor | None = None,
) -> None:
    """The state-space recurrence of Mamba and Mamba-2, into out.

    out, x, gate [tokens, heads, channels]; dt the same or [tokens, heads]; b, c [tokens, groups,
    states]; states [slots, heads, channels, states] are changed in the slots of step, the group's
    ``attention.states.StateMetadata``.
    """
    state_ops.state_scan(
        out,
        states,
        x,
        dt,
        recurrence.a,
        b,
        c,
        recurrence.d,
        gate,
        recurrence.dt_bias,
        step.sequences,
    )

"""The recurrence of selective state-space models, token by token."""

from __future__ import annotations

import torch


def state_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    d: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    state: torch.Tensor,
    softplus: bool,
) -> torch.Tensor:
    """x, dt, z [tokens, heads, channels]; a [heads, channels, states]; b, c [tokens, groups,
    states]; d, dt_bias [heads, channels]; state [heads, channels, states] before the first token.

    The result, [tokens, heads, channels], is followed by the state after the last token: flat, one
    after the other.
    """
    per_group = x.shape[1] // b.shape[1]
    b, c = b.repeat_interleave(per_group, 1), c.repeat_interleave(per_group, 1)
    steps = dt if dt_bias is None else dt + dt_bias
    if softplus:
        steps = torch.nn.functional.softplus(steps)
    results = []
    for t in range(len(x)):
        step = steps[t][..., None]
        state = (step * a).exp() * state + step * x[t][..., None] * b[t][:, None]
        y = (state * c[t][:, None]).sum(-1)
        if d is not None:
            y = y + d * x[t]
        results.append(y if z is None else y * torch.nn.functional.silu(z[t]))
    return torch.cat([torch.stack(results).flatten(), state.flatten()])

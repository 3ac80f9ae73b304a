"""Experts for providers that have no fused op: one linear layer after the other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from cpu_backend.products import Experts, Linear


class ExpertByExpert(Experts):
    """Each expert computes the tokens that were sent to it."""

    def __init__(self, gate_up: Sequence[Linear], down: Sequence[Linear], activation: str) -> None:
        self.layers = list(zip(gate_up, down, strict=True))
        self.activation = activation

    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        gate_up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> None:
        sums = x.new_zeros(out.shape, dtype=topk_weights.dtype)
        for expert in topk_ids.unique().tolist():
            if expert < 0:
                continue
            gate_up, down = self.layers[expert]
            tokens, choice = (topk_ids == expert).nonzero(as_tuple=True)
            hidden = x.new_empty(len(tokens), gate_up.out_features // gate_up.parts)
            bias = None if gate_up_bias is None else gate_up_bias[expert]
            run = gate_up.act if gate_up.parts == 1 else gate_up.act_and_mul
            run(hidden, x[tokens], self.activation, bias)
            given = down(hidden, None, None if down_bias is None else down_bias[expert])
            sums.index_add_(0, tokens, given * topk_weights[tokens, choice, None])
        out.copy_(sums)

"""LoRA adapters (Hu et al. 2021) of the experts in a mixture, in both products of each expert.

Tokens whose adapter has matrices for the experts are computed apart, sorted by adapter and expert;
all others take the op for experts, and their bits do not depend on what is beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cpu_backend.host.bases import (
    MoELoRAContext,
    tensor_model_parallel_all_gather,
    tensor_model_parallel_all_reduce,
)
from cpu_backend.products import Experts, activate, row_by_row


class ExpertAdapters:
    """What the adapters of a step's tokens add to the experts of one layer.

    context: the host's, with the matrices of all adapters: gate and up projection as [adapters,
    experts, rank, hidden] and [adapters, experts, intermediate, rank], one pair each or one for
    both; down projection as [adapters, experts, rank, intermediate] and [adapters, experts, hidden,
    rank].  in_turns: gates and ups of one pair for both are.
    """

    def __init__(self, context: MoELoRAContext, in_turns: bool) -> None:
        self._context = context
        self._in_turns = in_turns and context.w13_num_slices == 1
        self._sharded = context.fully_sharded and context.tp_size > 1

    def of_tokens(self, tokens: int) -> Tensor:
        """The index of each token's adapter [tokens]; -1 where it has none for these experts."""
        context = self._context
        adapters = context.local_token_lora_mapping
        if adapters is None:
            adapters = context.punica_wrapper.token_lora_indices
        adapters = adapters[:tokens].long()
        return adapters.where(context.adapter_enabled[adapters] != 0, -1)

    def __call__(
        self,
        experts: Experts,
        out: Tensor,
        x: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        gate_up_bias: Tensor | None,
        down_bias: Tensor | None,
    ) -> None:
        """What ``experts`` does, with the adapters of the tokens added to its experts' weights."""
        if not self._context.punica_wrapper.has_adapters:
            experts(out, x, topk_weights, topk_ids, gate_up_bias, down_bias)
            return
        adapters = self.of_tokens(len(x))
        adapted = adapters >= 0
        own = topk_ids.masked_fill(adapted.unsqueeze(1), -1)
        experts(out, x, topk_weights, own, gate_up_bias, down_bias)
        sums = torch.zeros(out.shape)
        chosen = adapted.unsqueeze(1) & (topk_ids >= 0)
        pairs = torch.stack((adapters.unsqueeze(1).expand_as(topk_ids), topk_ids.long()), -1)
        for adapter, expert in pairs[chosen].unique(dim=0).tolist():
            here = chosen & (pairs[..., 0] == adapter) & (topk_ids == expert)
            tokens, choice = here.nonzero(as_tuple=True)
            gate_up, down = experts.layers[expert]
            rows = x[tokens]
            biases = [b if b is None else b[expert] for b in (gate_up_bias, down_bias)]
            first = gate_up(rows, None, biases[0]).float() + self._gate_up(rows, adapter, expert)
            hidden = activate(first.to(x.dtype).float(), experts.activation, gate_up.parts)
            hidden = hidden.to(x.dtype)
            second = down(hidden, None, biases[1]).float()
            self._add_down(second, hidden, adapter, expert)
            sums.index_add_(0, tokens, second * topk_weights[tokens, choice, None])
        out[adapted] = sums[adapted].to(out.dtype)

    def _gate_up(self, x: Tensor, adapter: int, expert: int) -> Tensor:
        """x [rows, hidden] to [rows, halves * intermediate], fp32, the gate first."""
        context = self._context
        added = []
        pairs = zip(context.w13_lora_a_stacked, context.w13_lora_b_stacked, strict=True)
        for a, b in pairs:
            inner = row_by_row(x, _of(a, adapter, expert))
            if self._sharded:  # each rank has a part of the adapter's rank
                inner = tensor_model_parallel_all_gather(inner)
            added.append(row_by_row(inner, _of(b, adapter, expert)))
        if self._in_turns:
            added = [added[0][:, ::2], added[0][:, 1::2]]
        return torch.cat(added, 1)

    def _add_down(self, result: Tensor, hidden: Tensor, adapter: int, expert: int) -> None:
        """result [rows, hidden size], fp32, += of hidden [rows, intermediate]."""
        context = self._context
        inner = row_by_row(hidden, _of(context.w2_lora_a_stacked[0], adapter, expert))
        if self._sharded:  # each rank has some of the inputs, and the matrix of some outputs
            inner = tensor_model_parallel_all_reduce(inner)
        added = row_by_row(inner, _of(context.w2_lora_b_stacked[0], adapter, expert))
        first = context.tp_rank * added.shape[1] if self._sharded else 0
        result[:, first : first + added.shape[1]] += added


def _of(stacked: Tensor, adapter: int, expert: int) -> Tensor:
    """One of [adapters, experts, ...], or of [adapters, 1, ...], which all experts share."""
    return stacked[adapter, min(expert, stacked.shape[1] - 1)]

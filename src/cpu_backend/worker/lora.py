"""Adapters (LoRA) of a step's tokens, as the host's layers call them.

The host's own version for CPUs reads the last adapter for tokens that have none, as its index -1
counts from the end, and copies an adapter's matrices once per token.  Here one op does all tokens,
and reads which adapter each has while it runs, so that it can be in a recorded step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from cpu_backend import ops


class CPUPunicaWrapper(PunicaWrapperCPU):
    """The host's bookkeeping of which token has which adapter, and the products done here."""

    has_adapters = True  # whether any token of the step has one
    _of_all_rows: int | None = None

    def update_metadata(self, mapping: Any, *args: Any, **kwargs: Any) -> None:
        super().update_metadata(mapping, *args, **kwargs)
        self.has_adapters = any(mapping.index_mapping)

    @contextlib.contextmanager
    def logits_like(self, token: int) -> Iterator[None]:
        """Meanwhile all logits are of requests with the adapter of this ``token`` of the step,
        however many there are: outside of this there is one row per request."""
        self._of_all_rows = int(self.token_lora_indices[token])
        try:
            yield
        finally:
            self._of_all_rows = None

    def _apply_shrink(
        self, y: torch.Tensor, x: torch.Tensor, w_t_all: torch.Tensor, scale: float
    ) -> None:
        if self.has_adapters:
            _shrink(y.view(-1, y.shape[-1]), x, w_t_all, self.token_lora_indices, scale)

    def _apply_expand(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        w_t_all: torch.Tensor,
        y_offset: int,
        y_slice_size: int,
        add_inputs: bool = True,
    ) -> None:
        columns = y[:, y_offset : y_offset + y_slice_size]
        if not add_inputs:
            columns.zero_()
        if self.has_adapters:
            _expand(columns, x, w_t_all, self.token_lora_indices)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """The host's, whose buffers for x @ A are filled with zeros in each layer."""
        inner = tuple(x.new_empty(len(x), a.shape[-2], dtype=torch.float32) for a in lora_a_stacked)
        super().add_lora_linear(y, x, lora_a_stacked, *args, buffer=inner, **kwargs)

    def add_lora_embedding(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        add_inputs: bool = True,
        **kwargs: Any,
    ) -> None:
        """y [tokens, hidden] += x [tokens, rank], the adapters' rows of the vocabulary, @ B."""
        del add_inputs, kwargs
        if self.has_adapters:
            _expand(y, x, lora_b_stacked, self.token_lora_indices)

    def add_lora_logits(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: torch.Tensor,
        lora_b_stacked: torch.Tensor,
        scale: float,
        *,
        buffer: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        """y [requests, outputs] += x [requests, hidden] @ A * scale @ B."""
        del kwargs
        if not self.has_adapters:
            return
        if buffer is None:
            buffer = x.new_empty(x.shape[0], lora_b_stacked.shape[-1], dtype=torch.float32)
        indices = self.sampler_indices
        if self._of_all_rows is not None:
            indices = indices.new_full((x.shape[0],), self._of_all_rows)
        _shrink(buffer, x, lora_a_stacked, indices, scale)
        _expand(y, buffer, lora_b_stacked, indices)


def _shrink(
    y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, adapters: torch.Tensor, scale: float
) -> None:
    """y [tokens, rank] = x @ A * scale in fp32, whatever ``--lora-dtype`` is."""
    if x.dtype != weights.dtype:
        x, weights = x.float(), weights.float()
    ops.lora_shrink(y, x, weights, adapters, scale)


def _expand(
    y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, adapters: torch.Tensor
) -> None:
    """y [tokens, outputs] += x [tokens, rank] @ B; either may be padded to more outputs."""
    if y.dtype in (weights.dtype, torch.float32):
        ops.lora_expand(y, x.float(), weights, adapters)
    else:
        exact = y.float()
        ops.lora_expand(exact, x.float(), weights, adapters)
        y.copy_(exact)

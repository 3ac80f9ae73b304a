"""Adapters (LoRA) of a step's tokens, as the host's layers call them.

The host's own version for CPUs reads the last adapter for tokens that have none, as its index -1
counts from the end, and copies an adapter's matrices once per token.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from cpu_backend.products import row_by_row

BASE_MODEL = -1  # the host's index of tokens without an adapter


class CPUPunicaWrapper(PunicaWrapperCPU):
    """The host's bookkeeping of which token has which adapter, and the products done here."""

    _of_all_rows: int | None = None

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
        _expand(columns, x, w_t_all, self.token_lora_indices)

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
        if buffer is None:
            buffer = torch.zeros(x.shape[0], lora_b_stacked.shape[-1])
        indices = self.sampler_indices
        if self._of_all_rows is not None:
            indices = indices.new_full((x.shape[0],), self._of_all_rows)
        _shrink(buffer, x, lora_a_stacked, indices, scale)
        _expand(y, buffer, lora_b_stacked, indices)


def _shrink(
    y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, scale: float
) -> None:
    """y [tokens, rank] = x @ A * scale; rows of tokens without an adapter stay as they are."""
    for rows, weight in _adapters(weights, indices):
        y[rows, : weight.shape[0]] = row_by_row(x[rows], weight).mul_(scale).to(y.dtype)


def _expand(y: torch.Tensor, x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor) -> None:
    """y [tokens, outputs] += x [tokens, rank] @ B; either may be padded to more outputs."""
    for rows, weight in _adapters(weights, indices):
        common = min(weight.shape[0], y.shape[1])
        added = row_by_row(x[rows], weight[:common])
        y[rows, :common] = (y[rows, :common].float() + added).to(y.dtype)


def _adapters(
    weights: torch.Tensor, indices: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows and matrix [outputs, inputs] of every adapter that tokens have.

    weights: [adapters, outputs, inputs] or [adapters, 1, outputs, inputs]; indices: [tokens].
    """
    stacked = weights.squeeze(1) if weights.dim() == 4 else weights
    used = [index for index in indices.unique().tolist() if index != BASE_MODEL]
    return [((indices == index).nonzero().view(-1), stacked[index]) for index in used]

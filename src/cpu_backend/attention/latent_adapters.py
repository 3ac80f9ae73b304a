"""LoRA adapters of the projection from latents to keys and values of the heads.

The host's layer for it is never run: latent attention applies its halves to queries and results
(attention/latent.py), so what an adapter adds to it is added there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.distributed.communication_op import tensor_model_parallel_all_gather

from cpu_backend.products import row_by_row

ROWS = 64  # at once, for each of which an adapter's matrices of all heads are copied


class LatentAdapters:
    """Of one layer.  layer: the host's, with A [adapters, 1, rank, latent] and B [adapters, 1,
    heads * (unrotated + v_head_dim), rank] of all adapters; unrotated: channels of a key."""

    def __init__(self, layer: Any, heads: int, unrotated: int) -> None:
        self._layer, self._heads, self._unrotated = layer, heads, unrotated

    def _used(self, tokens: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Rows, A [rank, latent] and B [heads, unrotated + v_head_dim, rank] of each adapter that
        some of the first ``tokens`` have."""
        layer = self._layer
        if not layer.punica_wrapper.has_adapters:
            return
        indices = layer.punica_wrapper.token_lora_indices[:tokens]
        for index in indices.unique().tolist():
            if index >= 0:
                a, b = layer.lora_a_stacked[0][index, 0], layer.lora_b_stacked[0][index, 0]
                if a.shape[0] < b.shape[1]:  # fully sharded: each rank has some rows
                    a = tensor_model_parallel_all_gather(a, 0)
                yield (indices == index).nonzero()[:, 0], a, b.unflatten(0, (self._heads, -1))

    def add_to_queries(self, absorbed: torch.Tensor, query: torch.Tensor) -> None:
        """absorbed [tokens, heads, latent] += of query [tokens, heads, unrotated]."""
        for rows, a, b in self._used(len(query)):
            inner = head_by_head(query[rows], b[:, : self._unrotated])
            added = row_by_row(inner.flatten(0, 1), a.t()).view(len(rows), self._heads, -1)
            absorbed[rows] = (absorbed[rows].float() + added).to(absorbed.dtype)

    def add_to_results(self, results: torch.Tensor, attended: torch.Tensor) -> None:
        """results [tokens, heads, v_head_dim] += of attended [tokens, heads, latent]."""
        for rows, a, b in self._used(len(attended)):
            inner = row_by_row(attended[rows].flatten(0, 1), a).view(len(rows), self._heads, -1)
            added = head_by_head(inner, b[:, self._unrotated :].transpose(1, 2))
            results[rows] = (results[rows].float() + added).to(results.dtype)


def head_by_head(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """x [rows, heads, inputs] @ weights [heads, inputs, outputs] in fp32, every row by itself: its
    bits do not depend on the others'."""
    weights = weights.float()
    parts = [
        torch.bmm(
            part.float().flatten(0, 1).unsqueeze(1),
            weights.expand(len(part), *weights.shape).flatten(0, 1),
        ).view(len(part), len(weights), -1)
        for part in x.split(ROWS)
    ]
    return torch.cat(parts)

"""The ops of sparse attention (``csrc/torch_ops/sparse_attention.cpp``).

Where a step's tokens are: query_start_loc [requests + 1], seq_lens [requests] and block_table
[requests, pages], all int32.
"""

from __future__ import annotations

import torch

Places = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def cache_keys(keys: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """keys [tokens, channels] to their slots [tokens] int64 of a cache [blocks, block_size,
    channels], as choose_tokens reads them; a negative slot is passed over."""
    torch.ops.cpu_backend.cache_keys.default(keys, cache, slot_mapping)


def cache_rows(rows: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """rows [tokens, channels] to their slots of a cache, as sparse_attention reads them."""
    torch.ops.cpu_backend.cache_rows.default(rows, cache, slot_mapping)


def choose_tokens(
    query: torch.Tensor,
    weights: torch.Tensor,
    key_cache: torch.Tensor,
    places: Places,
    scale: float,
    scores: torch.Tensor,
    chosen: torch.Tensor,
) -> None:
    """The chosen.shape[1] tokens with the highest scores for each token into chosen [tokens,
    number] int32: their positions, ascending.  Rows of tokens that see no more are left alone.

    query [tokens, heads, channels], weights [tokens, heads]; a score is the sum over heads of
    weight * scale * relu(query . key), of equal ones the earlier token counts more.  scores
    [rows, positions] fp32 is memory to compute in, with room for whole pages of the longest
    sequence; so many tokens are computed at a time.  Raises ValueError where shapes do not fit.
    """
    torch.ops.cpu_backend.choose_tokens.default(
        query, weights, key_cache, *places, scale, scores, chosen
    )


def sparse_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    output: torch.Tensor,
    places: Places,
    chosen: torch.Tensor,
    scale: float,
) -> None:
    """Causal attention to the chosen tokens into output [tokens, heads, value_dim].

    query [tokens, heads, channels], cache [blocks, block_size, channels]: keys, whose first
    value_dim channels are the values; channels and value_dim are multiples of 16.  A token attends
    to those in its row of chosen, and where it sees no more than a row holds, to all of them.
    """
    torch.ops.cpu_backend.sparse_attention.default(query, cache, output, *places, chosen, scale)

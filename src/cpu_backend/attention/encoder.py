"""Attention within sequences that no step comes back to: those of encoders and of towers.

They keep no cache, and the kernel wants one (``csrc/kernels/attention.h``): each sequence gets
pages of its own, one behind the other.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

# Tokens of a page at most.  Longer pages read the queries less often, up to what L1 keeps of the
# scores: 24 to 32 rows of them.  Shorter ones were slower (32 and 64 tokens, Zen 4).
LONGEST_PAGE = 256
# In fp32 torch's own was as fast with AVX-512, and faster with AVX2.
DTYPES = (torch.bfloat16, torch.float16)
MULTIPLE = 16  # channels of a head and tokens of a page, which the kernel takes multiples of


def places(
    starts: torch.Tensor, lengths: torch.Tensor, longest_page: int
) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """Pages for sequences whose tokens lie one behind the other.

    starts, lengths [sequences].  Returns the block table [sequences, pages] int32, the slots of all
    tokens int64, and the number of pages and of tokens in each.  These are longest_page but where
    one such page holds any of the sequences: then it is as long as they need, which changes no
    sum, and what nobody fills does not scatter the rest over memory.
    """
    longest = max(1, int(lengths.max()))
    block_size = min(longest_page, longest + -longest % MULTIPLE)
    pages = (lengths + block_size - 1) // block_size
    first = torch.cumsum(pages, 0) - pages
    block_table = first[:, None] + torch.arange(int(pages.max()))
    # All slots of a sequence are as far from its tokens' places as the first one is.
    shift = (first * block_size - starts).repeat_interleave(lengths)
    slots = torch.arange(len(shift)) + shift
    return block_table.to(torch.int32), slots, (int(pages.sum()), block_size)


def takes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether attend() is for their dtype and sizes."""
    same = query.dtype == key.dtype == value.dtype and query.shape[-1] == key.shape[-1]
    return same and value.shape == key.shape and query.dtype in DTYPES


def seen_by_all(mask: torch.Tensor | None, batch: int, keys: int) -> torch.Tensor | None:
    """The keys [batch, keys] that all queries see by a mask [batch, 1, queries, keys]; None where
    they see different ones, or where the mask is none of True and False."""
    if mask is None:
        return torch.ones((batch, keys), dtype=torch.bool)
    if mask.dtype != torch.bool or mask.dim() != 4 or mask.shape[1] != 1:
        return None
    first = mask[:, :, :1]
    return first[:, 0, 0].expand(batch, keys) if torch.equal(first.expand_as(mask), mask) else None


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_starts: torch.Tensor,
    key_starts: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Every token to all of its sequence: its values in the proportions of
    softmax(scale * query key^T), [tokens, heads, size].

    query [tokens, heads, size]; key, value [others, kv_heads, size], of any size; the sequences
    begin at query_starts and key_starts [sequences + 1] int64.
    """
    heads, size = query.shape[1:]
    if missing := -size % MULTIPLE:  # zeros add nothing to products with keys
        query, key, value = (pad(x, (0, missing)) for x in (query, key, value))
    size += missing
    kv_heads = key.shape[1]
    starts, lengths = query_starts.to(torch.int32), key_starts.diff().to(torch.int32)
    block_table, slots, (pages, block_size) = places(key_starts[:-1], lengths, LONGEST_PAGE)
    cache = torch.zeros((pages, kv_heads, 2, block_size, size), dtype=query.dtype)
    cached = (cache[:, :, 0], cache[:, :, 1])
    out = torch.empty(query.shape, dtype=query.dtype)
    torch.ops._C.cpu_attn_reshape_and_cache.default(
        key, value, *cached, slots, "", 1.0, 1.0, "auto"
    )
    plan = torch.ops._C.get_scheduler_metadata.default(
        len(lengths), heads, kv_heads, size, lengths, query.dtype, starts, False, -1, "", True, None
    )
    torch.ops._C.cpu_attention_with_kv_cache.default(
        query,
        *cached,
        out,
        starts,
        lengths,
        scale,
        False,
        None,
        -1,
        block_table,
        0.0,
        plan,
        None,
        None,
        1.0,
        1.0,
        "auto",
    )
    return out[..., : size - missing] if missing else out

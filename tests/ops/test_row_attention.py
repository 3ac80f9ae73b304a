"""The host's attention over keys and values that lie row by row: its latent attention."""

from __future__ import annotations

import pytest
import torch

from tests.ops.accuracy import assert_accurate
from tests.reference.attention import Masking, attend

C = torch.ops._C
HEADS, LATENT, ROPE = 5, 64, 32
SCALE = 0.17


PLAIN = Masking()


def one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, masking: Masking = PLAIN
) -> torch.Tensor:
    """Of one request."""
    return attend(query, key, value, SCALE, masking)


def test_mla_decode_kvcache(dtype: torch.dtype, seeded: torch.Generator) -> None:
    lengths, block_size = [1, 17, 600, 32], 16
    blocks = [-(-length // block_size) for length in lengths]
    cache = torch.randn(50, block_size, LATENT + ROPE, generator=seeded).to(dtype)
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    order = torch.randperm(50, generator=seeded).int()
    for r, count in enumerate(blocks):
        table[r, :count] = order[:count] if r == 2 else order[r : r + count]
    query = torch.randn(len(lengths), HEADS, LATENT + ROPE, generator=seeded).to(dtype)
    out = torch.empty(len(lengths), HEADS, LATENT, dtype=dtype)
    C.mla_decode_kvcache(out, query, cache, SCALE, table, torch.tensor(lengths).int())
    for r, length in enumerate(lengths):
        rows = cache[table[r, : blocks[r]].long()].flatten(0, 1)[:length, None]
        assert_accurate(out[r : r + 1], one, query[r : r + 1], rows, rows[..., :LATENT])


class Buffers:
    """Keys and values row by row, values a part of the keys, and where requests have theirs."""

    def __init__(self, dtype: torch.dtype, seeded: torch.Generator, kv_heads: int = 1) -> None:
        self.keys = torch.randn(400, kv_heads, LATENT + ROPE, generator=seeded).to(dtype)
        self.values = self.keys[..., :LATENT]
        self.lengths = torch.tensor([1, 40, 130])
        self.table = torch.zeros(6, 200, dtype=torch.int32)
        self.requests = torch.tensor([4, 0, 3])
        places = torch.randperm(400, generator=seeded).int()
        begin = 0
        for request, length in zip(self.requests, self.lengths, strict=True):
            self.table[request, :length] = places[begin : begin + length]
            begin += int(length)

    def rows(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = self.table[self.requests[i], : self.lengths[i]].long()
        return self.keys[slots], self.values[slots]


@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_decode_attention(
    softcap: float, with_sinks: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    buffers = Buffers(dtype, seeded)
    query = torch.randn(3, HEADS, LATENT + ROPE, generator=seeded).to(dtype)
    sinks = torch.randn(HEADS, generator=seeded).to(dtype) if with_sinks else None
    out = torch.empty(3, HEADS, LATENT, dtype=dtype)
    C.decode_attention_cpu(
        *(query, buffers.keys, buffers.values, out, None, None, None, torch.empty(0)),
        *(buffers.table, buffers.requests, buffers.lengths, SCALE, softcap),
        *(False, 0, None, sinks),
    )
    masking = Masking(softcap=softcap, sinks=sinks)
    for i in range(3):
        assert_accurate(
            out[i : i + 1], lambda *rows: one(*rows, masking), query[i : i + 1], *buffers.rows(i)
        )


@pytest.mark.parametrize("apart", [False, True], ids=["part of the keys", "of their own"])
def test_decode_attention_writes_new_rows_first(apart: bool, seeded: torch.Generator) -> None:
    buffers = Buffers(torch.float32, seeded)
    if apart:
        buffers.values = buffers.values.clone()
    query = torch.randn(3, HEADS, LATENT + ROPE, generator=seeded)
    key = torch.randn(3, 1, LATENT + ROPE, generator=seeded)
    last = [buffers.table[r, n - 1] for r, n in zip(buffers.requests, buffers.lengths, strict=True)]
    out = torch.empty(3, HEADS, LATENT)
    C.decode_attention_cpu(
        *(query, buffers.keys, buffers.values, out, key, key[..., :LATENT], torch.stack(last)),
        *(torch.empty(0), buffers.table, buffers.requests, buffers.lengths, SCALE, 0.0),
        *(False, 0, None, None),
    )
    assert torch.equal(buffers.keys[torch.stack(last).long()], key)
    assert torch.equal(buffers.values[torch.stack(last).long()], key[..., :LATENT])
    for i in range(3):
        assert_accurate(out[i : i + 1], one, query[i : i + 1], *buffers.rows(i))


@pytest.mark.parametrize("kv_heads", [1, 5])
def test_extend_attention(kv_heads: int, dtype: torch.dtype, seeded: torch.Generator) -> None:
    """The cache has what was there before; the new rows come beside it."""
    buffers = Buffers(dtype, seeded, kv_heads)
    added = torch.tensor([1, 40, 30], dtype=torch.int32)  # all of the first two
    starts = torch.tensor([0, 1, 41], dtype=torch.int32)
    tokens = int(added.sum())
    query = torch.randn(tokens, HEADS, LATENT + ROPE, generator=seeded).to(dtype)
    key = torch.randn(tokens, kv_heads, LATENT + ROPE, generator=seeded).to(dtype)
    out = torch.empty(tokens, HEADS, LATENT, dtype=dtype)
    C.extend_attention_cpu(
        *(query, key, key[..., :LATENT], out, buffers.keys, buffers.values, buffers.table),
        *(buffers.requests, buffers.lengths, added, starts, 40, SCALE, 0.0),
        *(False, 0, None, None, None),
    )
    for i in range(3):
        own = slice(int(starts[i]), int(starts[i] + added[i]))
        old, _ = buffers.rows(i)
        keys = torch.cat([old[: int(buffers.lengths[i] - added[i])], key[own]])
        assert_accurate(out[own], one, query[own], keys, keys[..., :LATENT])


def test_concat_and_cache_mla(dtype: torch.dtype, seeded: torch.Generator) -> None:
    cache = torch.zeros(4, 16, LATENT + ROPE, dtype=dtype)
    latent = torch.randn(5, LATENT, generator=seeded).to(dtype)
    rope = torch.randn(5, ROPE, generator=seeded).to(dtype)
    slots = torch.tensor([3, -1, 40, 17])  # the last row is padding without a slot
    C.concat_and_cache_mla_cpu(latent, rope, cache, slots)
    wanted = torch.zeros_like(cache).view(-1, LATENT + ROPE)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            wanted[slot] = torch.cat((latent[token], rope[token]))
    assert torch.equal(cache.view_as(wanted), wanted)


def test_what_row_attention_does_not_do_is_said(seeded: torch.Generator) -> None:
    buffers = Buffers(torch.float32, seeded)
    query, out = torch.zeros(3, HEADS, LATENT + ROPE), torch.zeros(3, HEADS, LATENT)
    for cross, window, lens in ((True, 0, None), (False, 8, None), (False, 0, buffers.lengths)):
        with pytest.raises(NotImplementedError, match="are not supported over rows of keys"):
            C.decode_attention_cpu(
                *(query, buffers.keys, buffers.values, out, None, None, None, torch.empty(0)),
                *(buffers.table, buffers.requests, buffers.lengths, SCALE, 0.0),
                *(cross, window, lens, None),
            )

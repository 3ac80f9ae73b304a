"""rotary_embedding, in place."""

from __future__ import annotations

import pytest
import torch

from tests.ops.accuracy import assert_accurate
from tests.reference.rope import cos_sin_cache, rotate

MAX_POSITION = 300
TOKENS = 11
STYLES = pytest.mark.parametrize("neox", [True, False], ids=["neox", "gptj"])


def positions(seeded: torch.Generator, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(0, MAX_POSITION, (tokens,), generator=seeded)


def check(
    before: torch.Tensor, after: torch.Tensor, at: torch.Tensor, cache: torch.Tensor,
    neox: bool, offset: int = 0, inverse: bool = False,
) -> None:  # fmt: skip
    """Rotated channels are accurate, the others are the very same bits."""
    assert_accurate(after, lambda x, c: rotate(x, at, c, neox, offset, inverse), before, cache)
    end = offset + cache.shape[1]
    assert torch.equal(after[..., :offset], before[..., :offset])
    assert torch.equal(after[..., end:], before[..., end:])
    assert not torch.equal(after[..., offset:end], before[..., offset:end])


@STYLES
@pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
@pytest.mark.parametrize(
    ("head_size", "rotary_dim", "offset"),
    [
        (2, 2, 0),
        (6, 6, 0),
        (14, 14, 0),
        (16, 16, 0),
        (18, 18, 0),
        (34, 34, 0),
        (64, 64, 0),
        (64, 16, 0),
        (80, 32, 0),
        (64, 16, 48),
        (96, 30, 7),
        (128, 64, 64),
    ],
)
def test_rotary_embedding_matches_reference(
    head_size: int, rotary_dim: int, offset: int, inverse: bool, neox: bool,
    dtype: torch.dtype, seeded: torch.Generator,
) -> None:  # fmt: skip
    cache = cos_sin_cache(MAX_POSITION, rotary_dim).to(dtype)
    query = torch.randn(TOKENS, 5, head_size, generator=seeded).to(dtype)
    key = torch.randn(TOKENS, 2, head_size, generator=seeded).to(dtype)
    at = positions(seeded)
    q, k = query.clone(), key.clone()
    torch.ops._C.rotary_embedding(
        at, q.view(TOKENS, -1), k.view(TOKENS, -1), head_size, cache, neox, offset, inverse
    )
    check(query, q, at, cache, neox, offset, inverse)
    check(key, k, at, cache, neox, offset, inverse)


@STYLES
@pytest.mark.parametrize("dims", [2, 3])
def test_rotary_embedding_of_views_into_a_merged_projection(
    dims: int, neox: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    size, heads, kv_heads = 24, 4, 2
    qkv = torch.randn(TOKENS, (heads + 2 * kv_heads) * size, generator=seeded).to(dtype)
    before, at = qkv.clone(), positions(seeded)
    cache = cos_sin_cache(MAX_POSITION, size).to(dtype)
    widths = [heads * size, kv_heads * size, kv_heads * size]
    query, key, value = qkv.split(widths, dim=1)
    if dims == 3:
        query, key = query.unflatten(1, (heads, size)), key.unflatten(1, (kv_heads, size))
    torch.ops._C.rotary_embedding(at, query, key, size, cache, neox)
    old_query, old_key, old_value = before.split(widths, dim=1)
    unflat = (TOKENS, -1, size)
    check(old_query.reshape(unflat), query.reshape(unflat), at, cache, neox)
    check(old_key.reshape(unflat), key.reshape(unflat), at, cache, neox)
    assert torch.equal(value, old_value)


@STYLES
def test_rotary_embedding_of_any_strides(
    neox: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    storage = torch.randn(TOKENS, 4, 32, 3, generator=seeded).to(dtype)
    query, key = storage[:, :3, :, 1], torch.randn(64, TOKENS, generator=seeded).to(dtype).T
    dense_query, dense_key, before = query.contiguous(), key.contiguous(), storage.clone()
    cache = cos_sin_cache(MAX_POSITION, 32).to(dtype)
    at = torch.randint(0, MAX_POSITION, (TOKENS, 3), generator=seeded)[:, 1]
    torch.ops._C.rotary_embedding(at.contiguous(), dense_query, dense_key, 32, cache, neox)
    torch.ops._C.rotary_embedding(at, query, key, 32, cache, neox)
    assert torch.equal(query, dense_query)
    assert torch.equal(key, dense_key)
    before[:, :3, :, 1] = query
    assert torch.equal(storage, before), "nothing beside the query is written"


@STYLES
def test_rotary_embedding_without_key(
    neox: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    query = torch.randn(TOKENS, 3, 32, generator=seeded).to(dtype)
    cache = cos_sin_cache(MAX_POSITION, 32).to(dtype)
    at, q = positions(seeded), query.clone()
    torch.ops._C.rotary_embedding(at, q, None, 32, cache, neox)
    check(query, q, at, cache, neox)


@STYLES
def test_inverse_undoes_the_rotation(neox: bool, seeded: torch.Generator) -> None:
    query = torch.randn(TOKENS, 3 * 32, generator=seeded)
    cache, at, q = cos_sin_cache(MAX_POSITION, 32).float(), positions(seeded), query.clone()
    torch.ops._C.rotary_embedding(at, q, None, 32, cache, neox, 0, False)
    torch.ops._C.rotary_embedding(at, q, None, 32, cache, neox, 0, True)
    torch.testing.assert_close(q, query, rtol=0, atol=2e-6)


def test_rotary_embedding_of_many_tokens_equals_one_by_one(seeded: torch.Generator) -> None:
    query = torch.randn(700, 4 * 64, generator=seeded)
    cache, at, together = (
        cos_sin_cache(MAX_POSITION, 64).float(),
        positions(seeded, 700),
        query.clone(),
    )
    torch.ops._C.rotary_embedding(at, together, None, 64, cache, True)
    for t in range(0, 700, 13):
        torch.ops._C.rotary_embedding(at[t : t + 1], query[t : t + 1], None, 64, cache, True)
        assert torch.equal(query[t], together[t])


def test_rotary_embedding_accepts_no_tokens(dtype: torch.dtype) -> None:
    cache, none = cos_sin_cache(8, 16).to(dtype), torch.empty(0, 32, dtype=dtype)
    torch.ops._C.rotary_embedding(torch.empty(0, dtype=torch.int64), none, none, 16, cache, True)


def test_rotary_embedding_refuses_what_does_not_fit() -> None:
    rope = torch.ops._C.rotary_embedding
    at, query, cache = torch.zeros(3, dtype=torch.int64), torch.ones(3, 32), torch.ones(4, 16)
    with pytest.raises(ValueError, match="positions has 2 entries for 3 tokens"):
        rope(at[:2], query, None, 16, cache, True)
    with pytest.raises(TypeError, match="positions has dtype Int, expected Long"):
        rope(at.int(), query, None, 16, cache, True)
    with pytest.raises(TypeError, match="cos_sin_cache has dtype Half but query has Float"):
        rope(at, query, None, 16, cache.half(), True)
    with pytest.raises(ValueError, match="rotary_dim 16 at offset 8 does not fit heads of 16"):
        rope(at, query, None, 16, cache, True, 8)
    with pytest.raises(ValueError, match="32 columns, which is no multiple of the head size 24"):
        rope(at, query, None, 24, cache, True)
    with pytest.raises(ValueError, match="key has 2 tokens, query 3"):
        rope(at, query, torch.ones(2, 16), 16, cache, True)

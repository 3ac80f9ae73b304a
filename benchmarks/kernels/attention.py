"""Paged attention: one new token after a long context, many requests, and whole prompts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from measure import Work, copies_for
from models import LATENT_MODELS, MODELS, Model

from cpu_backend.attention import kv_dtypes
from cpu_backend.attention.backend import parts

CONTEXTS = (128, 512, 1024, 4096, 8192, 32768)
PROMPTS = (1024, 2048, 4096, 8192)
BATCH_CONTEXTS = (192, 1024)
BATCH = 64
_BLOCK_SIZE = 128
_CHECKED_ROWS = 4
_CACHES = ("auto", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head")


class _Cache:
    """The pages of some requests in one layer, in random order, filled through the op."""

    def __init__(
        self, model: Model, requests: int, tokens: int, dtype: torch.dtype, kv: str
    ) -> None:
        shape = (requests * tokens, model.kv_heads)
        self.key = torch.randn(*shape, model.head_dim).to(dtype)
        self.value = torch.randn(*shape, model.value_dim).to(dtype)
        each = -(-tokens // _BLOCK_SIZE)
        blocks = requests * each
        self.block_table = torch.randperm(blocks).int().view(requests, each)
        content = kv_dtypes.token_bytes(kv, dtype, model.head_dim + model.value_dim)
        pages = torch.zeros(blocks, model.kv_heads, _BLOCK_SIZE, content, dtype=torch.int8)
        if kv not in kv_dtypes.QUANTIZED:
            pages = pages.view(dtype)
        self.keys, self.values = parts(pages, model.head_dim, model.value_dim)
        at = torch.arange(tokens)
        pages_of = self.block_table.long()[:, at // _BLOCK_SIZE]
        slots = (pages_of * _BLOCK_SIZE + at % _BLOCK_SIZE).flatten()
        torch.ops._C.cpu_attn_reshape_and_cache(
            self.key, self.value, self.keys, self.values, slots, "", 1.0, 1.0, kv
        )


def _reference(model: Model, query: torch.Tensor, cache: _Cache) -> torch.Tensor:
    """The last rows of the last request's causal attention in fp32: query [rows, heads, dim]."""
    rows, tokens = len(query), len(cache.key) // len(cache.block_table)
    groups = model.heads // model.kv_heads
    last = (cache.key[-tokens:], cache.value[-tokens:])
    key, value = (t.float().repeat_interleave(groups, 1) for t in last)
    scores = torch.einsum("ihd,jhd->hij", query.float(), key) * model.head_dim**-0.5
    ahead = torch.arange(tokens)[None, :] > torch.arange(tokens - rows, tokens)[:, None]
    weights = scores.masked_fill(ahead, float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, value)


def _work(
    kernel: str,
    name: str,
    dtype: torch.dtype,
    query_len: int,
    tokens: int,
    kv: str = "auto",
    requests: int = 1,
) -> Work:
    model = (MODELS | LATENT_MODELS)[name]
    # Of keys and values of one token, and their scales.
    row = model.kv_heads * kv_dtypes.token_bytes(kv, dtype, model.head_dim + model.value_dim)
    copies = copies_for(requests * tokens * row)
    caches = [_Cache(model, requests, tokens, dtype, kv) for _ in range(copies)]
    query = torch.randn(requests * query_len, model.heads, model.head_dim).to(dtype)
    out = torch.empty(requests * query_len, model.heads, model.value_dim, dtype=dtype)
    starts = torch.arange(requests + 1).int() * query_len
    lengths = torch.full((requests,), tokens).int()
    plan = torch.ops._C.get_scheduler_metadata(
        requests, model.heads, model.kv_heads, model.head_dim, lengths, dtype, starts,
        True, -1, "", True, None,
    )  # fmt: skip

    def run(i: int) -> None:
        torch.ops._C.cpu_attention_with_kv_cache(
            query, caches[i].keys, caches[i].values, out, starts, lengths, model.head_dim**-0.5,
            True, None, -1, caches[i].block_table, 0.0, plan, None, None, 1.0, 1.0, kv,
        )  # fmt: skip

    run(0)
    checked = min(_CHECKED_ROWS, query_len)
    expected = _reference(model, query[-checked:], caches[0])
    error = float((out[-checked:] - expected).norm() / expected.norm())
    seen = query_len * tokens - query_len * (query_len - 1) // 2  # (query, key) pairs
    return Work(
        kernel,
        f"{name} {model.heads}/{model.kv_heads} heads of {model.head_dim}",
        str(dtype).removeprefix("torch.") + ("" if kv == "auto" else f", {kv} cache"),
        f"{tokens} tokens" if requests == 1 else f"{requests} x {tokens} tokens",
        run,
        copies,
        requests * tokens * row,
        2 * requests * model.heads * (model.head_dim + model.value_dim) * seen,
        error,
    )


def decode_works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """One query token at the end of each context, over each kind of cache."""
    for name in models:
        for dtype in dtypes:
            for tokens in sizes:
                for kv in _CACHES:
                    yield _work("decode attention", name, dtype, 1, tokens, kv)


def latent_works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """One query token at the end of each context, over latents that all heads share."""
    for name in models:
        for dtype in dtypes:
            for tokens in sizes:
                for kv in _CACHES:
                    yield _work("latent attention", name, dtype, 1, tokens, kv)


def batch_works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """One query token of each of many requests."""
    for name in models:
        for dtype in dtypes:
            for tokens in sizes:
                yield _work("batch attention", name, dtype, 1, tokens, requests=BATCH)


def prefill_works(models: list[str], dtypes: list[torch.dtype], sizes: list[int]) -> Iterator[Work]:
    """A whole prompt, causal."""
    for name in models:
        for dtype in dtypes:
            for tokens in sizes:
                yield _work("prefill attention", name, dtype, tokens, tokens)

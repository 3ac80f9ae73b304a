"""One step of paged attention as data: requests, pages in random order, and NaN wherever nothing
was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cpu_backend import ops
from cpu_backend.attention import kv_dtypes
from cpu_backend.attention.backend import parts
from tests.ops.accuracy import assert_accurate
from tests.reference.attention import Masking, attend
from tests.targets import TARGETS


@dataclass(frozen=True)
class Shape:
    """Queries are the last ``query_lens`` tokens of sequences of ``seq_lens``."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 16


@dataclass(frozen=True)
class Cache:
    """What the pages hold, as the host names it; the scales are those of fp8."""

    dtype: str = "auto"
    key_scale: float = 1.0
    value_scale: float = 1.0

    @property
    def arguments(self) -> tuple[float, float, str]:
        """The last arguments of the ops that write and read the cache."""
        return self.key_scale, self.value_scale, self.dtype

    @property
    def is_quantized(self) -> bool:
        return self.dtype in kv_dtypes.QUANTIZED

    def stored(self, rows: torch.Tensor, scale: float) -> torch.Tensor:
        """rows [..., dim] as they come back from the cache, in fp64: code times scale."""
        x = rows.float()
        if not self.is_quantized:
            return x.double()
        if self.dtype == "int8_per_token_head":
            scales = x.abs().amax(-1, keepdim=True) / 127
            return (x / scales).round().double() * scales.double()
        kind = torch.float8_e5m2 if self.dtype == "fp8_e5m2" else torch.float8_e4m3fn
        limit = torch.finfo(kind).max
        by = torch.tensor(scale)
        return (x / by).clamp(-limit, limit).to(kind).double() * by.double()


PLAIN = Cache()
QUANTIZED = [
    Cache("fp8", 0.02, 0.013),
    Cache("fp8_e4m3"),
    Cache("fp8_e5m2", 0.3, 2.5),
    Cache("int8_per_token_head"),
]


@dataclass(frozen=True)
class Case:
    """query [tokens, heads, dim]; keys, values per request [seq_len, kv_heads, dim], as cached;
    pages [blocks, kv_heads, 2 * block_size, dim], or bytes [blocks, kv_heads, block_size, content];
    block_table [requests, width]."""

    shape: Shape
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    pages: torch.Tensor
    block_table: torch.Tensor
    cache: Cache = PLAIN

    @property
    def halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The key and the value half of every page."""
        if self.cache.is_quantized:
            return parts(self.pages, self.shape.head_dim, self.shape.head_dim)
        return halves(self.pages)

    @property
    def scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    @property
    def starts(self) -> torch.Tensor:
        return torch.tensor([0, *self.shape.query_lens]).cumsum(0).int()

    def request(self, index: int) -> Case:
        """This request alone, on the same pages."""
        rows = slice(int(self.starts[index]), int(self.starts[index + 1]))
        one = slice(index, index + 1)
        shape = replace(
            self.shape, query_lens=self.shape.query_lens[one], seq_lens=self.shape.seq_lens[one]
        )
        keys, values = self.keys[one], self.values[one]
        return Case(
            shape, self.query[rows], keys, values, self.pages, self.block_table[one], self.cache
        )


def halves(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The key and the value half of every page."""
    block_size = pages.shape[2] // 2
    return pages[:, :, :block_size], pages[:, :, block_size:]


def make_case(
    shape: Shape,
    dtype: torch.dtype,
    seeded: torch.Generator,
    cache: Cache = PLAIN,
    values: list[torch.Tensor] | None = None,
) -> Case:
    """Random tokens, written by cpu_attn_reshape_and_cache in one call; ``values`` in place of
    random ones, if given."""

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=seeded).to(dtype)

    query = random(sum(shape.query_lens), shape.heads, shape.head_dim)
    keys = [2 * random(n, shape.kv_heads, shape.head_dim) for n in shape.seq_lens]
    values = values or [random(n, shape.kv_heads, shape.head_dim) for n in shape.seq_lens]
    width = max(1, *(-(-n // shape.block_size) for n in shape.seq_lens), 1)
    blocks = len(shape.seq_lens) * width + 2
    order = torch.randperm(blocks, generator=seeded).int()
    block_table = order[: len(shape.seq_lens) * width].view(-1, width)
    size = (blocks, shape.kv_heads, 2 * shape.block_size, shape.head_dim)
    pages = torch.full(size, float("nan"), dtype=dtype)
    if cache.is_quantized:
        content = kv_dtypes.token_bytes(cache.dtype, dtype, 2 * shape.head_dim)
        size = (blocks, shape.kv_heads, shape.block_size, content)
        pages = torch.full(size, -1, dtype=torch.int8)  # NaN in e5m2 and in scales
    case = Case(
        shape,
        query,
        [cache.stored(key, cache.key_scale) for key in keys] if cache.is_quantized else keys,
        [cache.stored(v, cache.value_scale) for v in values] if cache.is_quantized else values,
        pages,
        block_table,
        cache,
    )
    slots = []
    for row, seq_len in zip(block_table.long(), shape.seq_lens, strict=True):
        at = torch.arange(seq_len)
        slots.append(row[at // shape.block_size] * shape.block_size + at % shape.block_size)
    torch.ops._C.cpu_attn_reshape_and_cache(
        torch.cat(keys), torch.cat(values), *case.halves, torch.cat(slots), "", *cache.arguments
    )
    return case


def plan(
    case: Case, masking: Masking, split: bool = True, dynamic_causal: torch.Tensor | None = None
) -> torch.Tensor:
    """The work list; its header is [magic, items, merges, partials] in int32."""
    metadata: torch.Tensor = torch.ops._C.get_scheduler_metadata(
        len(case.shape.seq_lens), case.shape.heads, case.shape.kv_heads, case.shape.head_dim,
        torch.tensor(case.shape.seq_lens).int(), case.query.dtype, case.starts, masking.causal,
        masking.window, "", split, dynamic_causal, case.cache.dtype,
    )  # fmt: skip
    return metadata


def merges(metadata: torch.Tensor) -> int:
    """How many rows were cut into partitions that are merged afterwards."""
    return int(metadata[:16].view(torch.int32)[2])


def run(
    case: Case,
    masking: Masking,
    metadata: torch.Tensor | None = None,
    dynamic_causal: torch.Tensor | None = None,
    channel_stride: int = 1,
) -> torch.Tensor:
    """The op's output, from strided rows into strided rows; nothing beside them is written."""
    metadata = plan(case, masking, True, dynamic_causal) if metadata is None else metadata
    tokens, heads, dim = case.query.shape
    size = (tokens, heads + 3, dim, channel_stride)
    merged = torch.full(size, float("nan"), dtype=case.query.dtype)[..., 0]
    merged[:, 1 : 1 + heads] = case.query
    buffer = torch.full((tokens + 1, heads + 2, dim + 5), float("nan"), dtype=case.query.dtype)
    out = buffer[:tokens, 1:-1, :dim]
    torch.ops._C.cpu_attention_with_kv_cache(
        merged[:, 1 : 1 + heads], *case.halves, out, case.starts,
        torch.tensor(case.shape.seq_lens).int(), case.scale, masking.causal,
        masking.alibi_slopes, masking.window, case.block_table, masking.softcap, metadata,
        masking.sinks, dynamic_causal, *case.cache.arguments,
    )  # fmt: skip
    result = out.clone()
    out.fill_(float("nan"))
    assert buffer.isnan().all(), "written outside the output"
    return result


def _slack(case: Case) -> float:
    if case.cache.dtype == "int8_per_token_head":
        return 2e-4  # queries and probabilities become 16-bit integers
    if case.query.dtype == torch.bfloat16 and not case.cache.is_quantized:
        # Probabilities are rounded to bf16, by up to 2^-9 of each, where it is multiplied in pairs.
        in_pairs = {"avx512_bf16", "bf16"} & TARGETS[ops.load().target].features
        return 2.0**-10 if in_pairs else 0.0
    return 0.0


def check(case: Case, masking: Masking, result: torch.Tensor | None = None) -> None:
    """Every request's rows against the reference."""
    result = run(case, masking) if result is None else result
    for index in range(len(case.shape.seq_lens)):
        rows = slice(int(case.starts[index]), int(case.starts[index + 1]))
        assert_accurate(
            result[rows],
            lambda q, k, v: attend(q, k, v, case.scale, masking),
            case.query[rows],
            case.keys[index],
            case.values[index],
            slack=_slack(case),
        )

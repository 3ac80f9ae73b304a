"""Paged attention against attention over each request's own keys and values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.ops.attention_case import (
    PLAIN,
    QUANTIZED,
    Cache,
    Case,
    Shape,
    check,
    make_case,
    merges,
    plan,
    run,
)
from tests.reference.attention import Masking, attend

CAUSAL = Masking()

# Names of a batch's contents: (query_lens, seq_lens).
BATCHES = {
    "prefill": ((1, 15, 16, 17, 40), (1, 15, 16, 17, 40)),
    "decode": ((1, 1, 1, 1, 1), (1, 15, 33, 64, 150)),
    "mixed": ((1, 20, 1, 7, 0, 2), (70, 20, 3, 39, 18, 2)),
}


def slopes(heads: int) -> torch.Tensor:
    return torch.tensor([2.0 ** -(8 * (h + 1) / heads) for h in range(heads)])


MASKINGS = {
    "causal": CAUSAL,
    "window": Masking(window=9),
    "window of one": Masking(window=1),
    "window of a page": Masking(window=16),
    "softcap": Masking(softcap=2.0),
    "alibi": Masking(alibi_slopes=slopes(4)),
    "sinks": Masking(sinks=torch.tensor([-3.0, 0.5, 6.0, 1.0])),
    "non-causal": Masking(causal=False),
    "non-causal window": Masking(causal=False, window=12),
    "non-causal alibi": Masking(causal=False, alibi_slopes=slopes(4)),
    "all": Masking(
        window=25, softcap=5.0, alibi_slopes=slopes(4), sinks=torch.tensor([0.0, 1.0, 2.0, -1.0])
    ),
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("masking", MASKINGS)
def test_attention_matches_reference(
    masking: str, batch: str, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    check(make_case(Shape(*BATCHES[batch]), dtype, seeded), MASKINGS[masking])


@pytest.mark.parametrize("head_dim", [16, 32, 64, 80, 96, 112, 128, 192, 256, 512])
@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_attention_of_every_head_and_block_size(
    head_dim: int, block_size: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    shape = Shape((1, 6, 1), (140, 19, 33), 2, 1, head_dim, block_size)
    check(make_case(shape, dtype, seeded), CAUSAL)


def test_attention_takes_queries_of_any_strides(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    case = make_case(Shape(*BATCHES["mixed"]), dtype, seeded)
    assert torch.equal(run(case, CAUSAL, channel_stride=3), run(case, CAUSAL))


@pytest.mark.parametrize(
    ("heads", "kv_heads"),
    [(1, 1), (3, 3), (4, 1), (6, 2), (7, 1), (9, 3), (16, 2), (25, 1), (32, 1)],
)
def test_attention_maps_query_heads_to_kv_heads(
    heads: int, kv_heads: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    shape = Shape((1, 9, 3), (37, 9, 20), heads, kv_heads)
    sinks = torch.linspace(-2, 3, heads)
    check(make_case(shape, dtype, seeded), CAUSAL)
    check(make_case(shape, dtype, seeded), Masking(alibi_slopes=slopes(heads), sinks=sinks))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 32, 33])
def test_attention_of_sequences_around_vector_lengths(
    size: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    case = make_case(Shape((size, 1), (size, size)), dtype, seeded)
    for masking in (CAUSAL, MASKINGS["non-causal"], Masking(window=max(1, size - 1))):
        check(case, masking)


@pytest.mark.parametrize("masking", ["causal", "window", "non-causal", "sinks", "all"])
@pytest.mark.parametrize("query_len", [1, 3])
def test_long_contexts_are_split_and_merged(
    query_len: int, masking: str, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(2)
    shape = Shape((query_len, 1), (1700, 40), block_size=48)
    case, options = make_case(shape, dtype, seeded), MASKINGS[masking]
    if options.window < 0:
        assert merges(plan(case, options)) > 0, "this case is meant to take the merge path"
    check(case, options)


@pytest.mark.parametrize("window", [600, 1025])
def test_windows_longer_than_a_partition(
    window: int, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(2)
    case, masking = make_case(Shape((2,), (1611,), 2, 1), dtype, seeded), Masking(window=window)
    assert merges(plan(case, masking)) > 0
    check(case, masking)
    check(case, masking, run(case, masking, plan(case, CAUSAL)))  # a plan that skips no page


def test_result_does_not_depend_on_threads_or_splitting(
    dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    shape = Shape((1, 30, 1, 5), (1800, 30, 700, 1100), block_size=32)
    case = make_case(shape, dtype, seeded)
    for masking in (CAUSAL, Masking(window=800), MASKINGS["all"]):
        results, counts = [], set()
        for threads_now in (1, 2, 5):
            torch.set_num_threads(threads_now)
            for split in (False, True):
                metadata = plan(case, masking, split)
                counts.add(merges(metadata))
                results.append(run(case, masking, metadata))
        assert masking.window > 0 or len(counts) > 1, "the plans are meant to differ"
        assert all(torch.equal(results[0], other) for other in results)


def test_result_of_a_request_does_not_depend_on_its_batch(
    dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    torch.set_num_threads(2)
    shape = Shape((1, 33, 1, 7, 1), (1300, 33, 1, 600, 77), 6, 2)
    case = make_case(shape, dtype, seeded)
    for masking in (CAUSAL, Masking(window=100)):
        together = run(case, masking)
        for index in range(len(shape.seq_lens)):
            rows = slice(int(case.starts[index]), int(case.starts[index + 1]))
            assert torch.equal(run(case.request(index), masking), together[rows])


def test_result_of_a_token_does_not_depend_on_chunked_prefill(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    whole = make_case(Shape((60,), (60,)), dtype, seeded)
    together = run(whole, CAUSAL)
    for begin, end in [(0, 17), (17, 45), (45, 46), (46, 60)]:
        assert torch.equal(run(_chunk(whole, begin, end), CAUSAL), together[begin:end])


@pytest.mark.parametrize("cache", [PLAIN, *QUANTIZED], ids=str)
@pytest.mark.parametrize("block_size", [16, 48, 80, 128])
def test_result_of_a_token_does_not_depend_on_how_far_back_its_chunk_sees(
    block_size: int, cache: Cache, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Chunks around the first partition's end, so that pages begin anywhere in the second.  Weights
    are equal, and the values of a window cancel: what is left is what their order makes of it."""
    shape = Shape((620,), (620,), 8, 1, block_size=block_size)
    sizes = torch.rand((16, 1, shape.head_dim), generator=seeded) * 24 - 12
    value = (torch.randn(sizes.shape, generator=seeded) * sizes.exp2()).to(dtype)
    values = torch.cat([value, -value]).repeat(20, 1, 1)[: shape.seq_lens[0]]
    whole = make_case(shape, dtype, seeded, cache, [values])
    whole = replace(whole, query=torch.zeros_like(whole.query))
    masking = Masking(window=64)
    together = run(whole, masking)
    for begin in range(480, 600, 3):
        for end in (begin + 1, begin + 11):
            assert torch.equal(run(_chunk(whole, begin, end), masking), together[begin:end])


def _chunk(whole: Case, begin: int, end: int) -> Case:
    """The tokens [begin, end) of a case of one request that is all prompt."""
    shape = replace(whole.shape, query_lens=(end - begin,), seq_lens=(end,))
    return replace(whole, shape=shape, query=whole.query[begin:end])


@pytest.mark.parametrize("cache", QUANTIZED, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("masking", ["causal", "window", "non-causal", "all"])
def test_attention_over_a_quantized_cache(
    masking: str, batch: str, cache: Cache, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    check(make_case(Shape(*BATCHES[batch]), dtype, seeded, cache), MASKINGS[masking])


@pytest.mark.parametrize("cache", QUANTIZED, ids=str)
@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128, 256, 512])
def test_quantized_cache_of_every_head_size(
    head_dim: int, cache: Cache, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    shape = Shape((1, 6, 1), (1140, 19, 33), 6, 2, head_dim, 48)
    check(make_case(shape, dtype, seeded, cache), CAUSAL)


@pytest.mark.parametrize("cache", QUANTIZED, ids=str)
def test_quantized_cache_gives_every_chunk_and_thread_the_same(
    cache: Cache, dtype: torch.dtype, seeded: torch.Generator, threads: None
) -> None:
    whole = make_case(Shape((700,), (1300,)), dtype, seeded, cache)
    together = run(whole, CAUSAL)
    for threads_now in (1, 2):
        torch.set_num_threads(threads_now)
        for begin, end in [(0, 17), (17, 545), (545, 546), (546, 700)]:
            chunk = replace(
                whole, shape=Shape((end - begin,), (600 + end,)), query=whole.query[begin:end]
            )
            assert torch.equal(run(chunk, CAUSAL), together[begin:end])


def test_causality_per_request(dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = make_case(Shape((20, 1, 9, 30), (20, 50, 31, 30)), dtype, seeded)
    causal = torch.tensor([True, True, False, False])
    result = run(case, CAUSAL, None, causal)
    for index in range(4):
        rows = slice(int(case.starts[index]), int(case.starts[index + 1]))
        check(case.request(index), Masking(causal=bool(causal[index])), result[rows])


def test_encoder_attention_has_no_cache_of_its_own(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    """Whole sequences, nothing masked; and queries of a decoder over a shorter encoder output."""
    check(make_case(Shape((19, 1, 40), (19, 1, 40)), dtype, seeded), MASKINGS["non-causal"])
    check(make_case(Shape((30, 1), (7, 45)), dtype, seeded), MASKINGS["non-causal"])


@pytest.mark.parametrize("sinks", [None, torch.tensor([1.0, 2.0, 3.0, 4.0])], ids=["", "sinks"])
def test_query_that_sees_nothing_gives_zeros(
    sinks: torch.Tensor | None, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    case, masking = make_case(Shape((5,), (3,)), dtype, seeded), Masking(sinks=sinks)
    result = run(case, masking)
    assert torch.equal(result[:2], torch.zeros_like(result[:2]))
    check(case, masking, result)


def test_large_scores_do_not_overflow(dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = make_case(Shape((3, 1), (50, 700)), dtype, seeded)
    case.query.mul_(300)
    result = run(case, CAUSAL)
    assert result.isfinite().all()
    exact = attend(
        case.query[:3].double(), case.keys[0].double(), case.values[0].double(), case.scale, CAUSAL
    )
    # Scores of some 1000 carry an fp32 error of 1e-4, which is what the weights then have.
    torch.testing.assert_close(result[:3].double(), exact, rtol=0, atol=2e-2)


def test_attention_accepts_no_tokens(dtype: torch.dtype, seeded: torch.Generator) -> None:
    case = make_case(Shape((0, 0), (5, 0)), dtype, seeded)
    assert run(case, CAUSAL).shape == (0, 4, 32)

"""Token choice and repetition penalties."""

from __future__ import annotations

import pytest
import torch
from vllm._custom_ops import apply_repetition_penalties_torch

from cpu_backend.ops import apply_penalties, keep_top, sample
from tests.ops.accuracy import ODD_SIZES, guarded
from tests.reference.sample import argmax, gumbel_argmax

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("vocabulary", [*ODD_SIZES, 32003])
def test_greedy_argmax_finds_the_maximum(
    vocabulary: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    content = torch.randn(6, vocabulary, generator=seeded)
    logits = guarded(6, vocabulary, dtype, content)
    chosen = torch.ops._C.greedy_argmax(logits.rows)
    assert chosen.dtype == torch.int64
    assert chosen.tolist() == [argmax(row) for row in logits.rows]


@pytest.mark.parametrize("at", range(35))
def test_greedy_argmax_finds_every_column(at: int, dtype: torch.dtype) -> None:
    logits = torch.full((1, 35), -3.0, dtype=dtype)
    logits[0, at] = -2.0
    assert torch.ops._C.greedy_argmax(logits).item() == at


def test_greedy_argmax_takes_the_lowest_index_of_ties(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    logits = torch.randint(0, 3, (200, 37), generator=seeded).to(dtype)
    assert torch.ops._C.greedy_argmax(logits).tolist() == [argmax(row) for row in logits]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([NAN, 1.0, 2.0], 2),
        ([3.0, NAN, 2.0], 0),
        ([NAN, NAN, NAN], 0),
        ([-INF, -INF, -INF], 0),
        ([-INF, NAN, -5.0], 2),
        ([1.0, INF, INF], 1),
        ([NAN] * 20 + [-INF] * 20 + [-1e4], 40),
    ],
)
def test_greedy_argmax_with_nan_and_infinity(
    row: list[float], expected: int, dtype: torch.dtype
) -> None:
    assert torch.ops._C.greedy_argmax(torch.tensor([row], dtype=dtype)).item() == expected


@pytest.mark.parametrize("vocabulary", [1, 7, 8, 9, 17, 33, 129])
def test_gumbel_argmax_matches_reference(
    vocabulary: int, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    logits = torch.randn(30, vocabulary, generator=seeded).to(dtype)
    seeds = torch.randint(-(2**63), 2**63 - 1, (30,), generator=seeded)
    chosen = torch.ops._C.fused_gumbel_argmax(logits, seeds)
    pairs = zip(logits, seeds.tolist(), strict=True)
    assert chosen.tolist() == [gumbel_argmax(row, seed) for row, seed in pairs]


@pytest.mark.parametrize("scale", [1, 0x1234567_00000000], ids=["small seeds", "large seeds"])
def test_gumbel_argmax_draws_from_the_softmax(scale: int, seeded: torch.Generator) -> None:
    draws = 40000
    logits = 1.5 * torch.randn(21, generator=seeded)
    seeds = torch.arange(draws) * scale % (2**62) + 5
    chosen = torch.ops._C.fused_gumbel_argmax(logits.expand(draws, -1).contiguous(), seeds)
    expected = draws * logits.double().softmax(0)
    counts = chosen.bincount(minlength=21)
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 45.3, "20 degrees of freedom exceed this once in a thousand runs"


def test_gumbel_argmax_depends_on_its_own_row_and_seed_alone(
    dtype: torch.dtype, seeded: torch.Generator
) -> None:
    logits = torch.randn(50, 77, generator=seeded).to(dtype)
    seeds = torch.randint(0, 2**62, (50,), generator=seeded)
    together = torch.ops._C.fused_gumbel_argmax(logits, seeds)
    assert torch.equal(together, torch.ops._C.fused_gumbel_argmax(logits, seeds))
    reverse = torch.ops._C.fused_gumbel_argmax(logits.flip(0), seeds.flip(0))
    assert torch.equal(together, reverse.flip(0))
    other = torch.ops._C.fused_gumbel_argmax(logits, seeds + 1)
    assert not torch.equal(together, other)


def test_gumbel_argmax_never_draws_what_is_masked(seeded: torch.Generator) -> None:
    logits = torch.full((500, 40), -INF)
    logits[:, 11], logits[:, 38] = 0.0, 1.0
    chosen = torch.ops._C.fused_gumbel_argmax(logits, torch.arange(500))
    assert set(chosen.tolist()) == {11, 38}


@pytest.mark.parametrize("vocabulary", [1, 7, 16, 33, 1001])
def test_repetition_penalties_match_the_host(vocabulary: int, seeded: torch.Generator) -> None:
    logits = guarded(6, vocabulary, torch.float32, torch.randn(6, vocabulary, generator=seeded))
    prompt, output = torch.rand(2, 6, vocabulary, generator=seeded) < 0.3
    penalties = torch.tensor([1.0, 1.3, 0.7, 2.0, 1.1, 10.0])
    expected = logits.rows.clone()
    apply_repetition_penalties_torch(expected, prompt, output, penalties)
    torch.ops._C.apply_repetition_penalties_(logits.rows, prompt, output, penalties)
    torch.testing.assert_close(logits.rows, expected, rtol=3e-7, atol=0)
    logits.assert_intact()


def test_sampling_accepts_no_requests() -> None:
    logits, mask = torch.empty(0, 9), torch.empty(0, 9, dtype=torch.bool)
    assert torch.ops._C.greedy_argmax(logits).shape == (0,)
    none = torch.empty(0, dtype=torch.int64)
    assert torch.ops._C.fused_gumbel_argmax(logits, none).shape == (0,)
    torch.ops._C.apply_repetition_penalties_(logits, mask, mask, torch.empty(0))


def test_sampling_refuses_what_does_not_fit() -> None:
    logits, mask = torch.zeros(2, 9), torch.zeros(2, 9, dtype=torch.bool)
    with pytest.raises(ValueError, match="logits must be"):
        torch.ops._C.greedy_argmax(logits[0])
    with pytest.raises(ValueError, match="logits must be"):
        torch.ops._C.greedy_argmax(torch.empty(2, 0))
    with pytest.raises(ValueError, match="seeds has 3 entries for 2 rows"):
        torch.ops._C.fused_gumbel_argmax(logits, torch.arange(3))
    penalize = torch.ops._C.apply_repetition_penalties_
    with pytest.raises(TypeError, match="must be float32"):
        penalize(logits.half(), mask, mask, torch.ones(2))
    with pytest.raises(ValueError, match=r"prompt_mask has shape \[1, 9\]"):
        penalize(logits, mask[:1], mask, torch.ones(2))
    with pytest.raises(ValueError, match=r"repetition_penalties has shape \[1\]"):
        penalize(logits, mask, mask, torch.ones(1))


@pytest.mark.parametrize("vocabulary", [2, 9, 33, 4099, 49152])
@pytest.mark.parametrize("options", ["k", "p", "k and p"])
def test_keep_top_chooses_what_the_hosts_sort_chooses(
    vocabulary: int, options: str, seeded: torch.Generator
) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    logits = 3 * torch.randn(5, vocabulary, generator=seeded)
    k = (
        torch.tensor([1, 2, 50, vocabulary, 7]).clamp(max=vocabulary).int()
        if "k" in options
        else None
    )
    p = torch.tensor([0.9, 1.0, 0.3, 0.999, 0.01]) if "p" in options else None
    expected = apply_top_k_top_p_pytorch(logits.clone(), k, p)
    chosen = keep_top(logits.clone(), k, p)
    kept = chosen > -INF
    assert torch.equal(chosen[kept], logits[kept])
    # The host sums fp32 probabilities from the smallest up: the last token kept may differ.
    assert (kept != (expected > -INF)).sum(-1).max() <= (1 if "p" in options else 0)
    assert kept.any(-1).all()


def test_keep_top_leaves_what_is_beside_the_logits(seeded: torch.Generator) -> None:
    logits = guarded(3, 37, torch.float32, torch.randn(3, 37, generator=seeded))
    keep_top(logits.rows, torch.tensor([3, 37, 1]).int(), None)
    assert (logits.rows > -INF).sum(-1).tolist() == [3, 37, 1]
    logits.assert_intact()


def test_keep_top_refuses_other_shapes_and_dtypes() -> None:
    logits = torch.zeros(2, 3)
    with pytest.raises(TypeError, match="logits must be float32"):
        keep_top(logits.double(), None, None)
    with pytest.raises(ValueError, match="k has shape"):
        keep_top(logits, torch.zeros(3).int(), None)
    with pytest.raises(TypeError, match="p has dtype"):
        keep_top(logits, None, torch.zeros(2).double())


def test_sample_draws_from_what_the_filters_leave(seeded: torch.Generator) -> None:
    """Against the definition: which tokens may be drawn, and how often each is."""
    draws = 40000
    logits = 2 * torch.randn(300, generator=seeded)
    temperature, k, p, min_p = 0.7, 20, 0.9, 0.02
    probabilities = (logits.double() / temperature).softmax(0)
    probabilities[probabilities < min_p * probabilities.max()] = 0
    probabilities[probabilities < probabilities.topk(k).values[-1]] = 0
    probabilities /= probabilities.sum()
    ordered, order = probabilities.sort(descending=True)
    ordered[ordered.cumsum(0) - ordered >= p] = 0
    probabilities = torch.zeros_like(ordered).scatter(0, order, ordered / ordered.sum())
    seeds = torch.randint(0, 2**62, (draws,), generator=seeded)

    def rows(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full((draws,), value, dtype=dtype)

    many = logits.repeat(draws, 1)
    tokens = sample(many, rows(temperature), rows(k, torch.int32), rows(p), rows(min_p), seeds)
    counts = tokens.bincount(minlength=300)
    kept = probabilities > 0
    assert 3 < kept.sum() < k, "a case in which each filter takes something"
    assert counts[~kept].sum() == 0
    expected = draws * probabilities[kept]
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum().item()
    freedom = int(kept.sum()) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_sample_takes_the_largest_of_cold_rows(seeded: torch.Generator) -> None:
    logits = torch.randn(8, 77, generator=seeded)
    expected = logits.argmax(-1)
    temperature = torch.tensor([0.0, 5.0] * 4)
    tokens = sample(logits, temperature, None, None, None, torch.arange(8))
    assert torch.equal(tokens[::2], expected[::2])
    assert not torch.equal(tokens[1::2], expected[1::2])


def test_sample_refuses_what_does_not_fit() -> None:
    logits, ones, seeds = torch.zeros(2, 9), torch.ones(2), torch.arange(2)
    with pytest.raises(TypeError, match="logits must be float32"):
        sample(logits.half(), ones, None, None, None, seeds)
    with pytest.raises(ValueError, match=r"temperature has shape \[3\]"):
        sample(logits, torch.ones(3), None, None, None, seeds)
    with pytest.raises(TypeError, match="min_p has dtype"):
        sample(logits, ones, None, None, ones.double(), seeds)
    with pytest.raises(ValueError, match=r"seeds has shape \[1\]"):
        sample(logits, ones, None, None, None, seeds[:1])


@pytest.mark.parametrize("vocabulary", [1, 7, 33, 4099])
def test_penalties_match_the_host(vocabulary: int, seeded: torch.Generator) -> None:
    from vllm.v1.sample.ops.penalties import apply_all_penalties

    requests = 5
    logits = guarded(requests, vocabulary, torch.float32, torch.randn(requests, vocabulary))
    prompt = torch.randint(0, vocabulary + 1, (requests, 40), generator=seeded)  # last: padding
    output = [
        torch.randint(-1, vocabulary, (length,), generator=seeded).tolist()  # -1: not known yet
        for length in (0, 1, 17, 300, 4)
    ]
    repetition = torch.tensor([1.0, 1.3, 0.7, 2.0, 1.1])
    frequency = torch.tensor([0.0, 0.5, -0.5, 0.25, 2.0])
    presence = torch.tensor([0.0, 1.0, 0.5, -1.5, 0.0])
    expected = apply_all_penalties(
        logits.rows.clone(), prompt, presence, frequency, repetition, [list(o) for o in output]
    )
    start = torch.tensor([0, *(len(o) for o in output)]).cumsum(0)
    flat = torch.tensor([token for tokens in output for token in tokens])
    apply_penalties(logits.rows, prompt, flat, start, repetition, frequency, presence)
    torch.testing.assert_close(logits.rows, expected, rtol=1e-6, atol=1e-6)
    logits.assert_intact()


def test_penalties_refuse_what_does_not_fit() -> None:
    logits, prompt, ones = torch.zeros(2, 9), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2)
    output, start = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 4])
    with pytest.raises(ValueError, match="prompt must be"):
        apply_penalties(logits, prompt[:1], output, start, ones, ones, ones)
    for wrong in ([0, 1, 5], [0, 3, 1], [-1, 1, 4]):
        with pytest.raises(ValueError, match="output_start must rise from 0 to at most 4"):
            apply_penalties(logits, prompt, output, torch.tensor(wrong), ones, ones, ones)
    with pytest.raises(ValueError, match=r"output_start has shape \[2\]"):
        apply_penalties(logits, prompt, output, start[:2], ones, ones, ones)
    with pytest.raises(ValueError, match=r"presence has shape \[1\]"):
        apply_penalties(logits, prompt, output, start, ones, ones, ones[:1])

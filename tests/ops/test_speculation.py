"""The ops of speculative decoding against loops in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cpu_backend import ops
from tests.reference import speculation

C = torch.ops._C
VOCABULARY = 1003
COUNTS = (3, 0, 1, 4, 0, 2)  # drafts of each request
ENDS = torch.tensor(COUNTS).cumsum(0)
TOKENS = sum(COUNTS)
WIDTH = max(COUNTS) + 1
INTEGERS = pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=["int32", "int64"])


def _ids(generator: torch.Generator, *shape: int, most: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=generator)


def _probabilities(generator: torch.Generator, rows: int, size: int = VOCABULARY) -> torch.Tensor:
    return torch.randn(rows, size, generator=generator).mul(2).softmax(-1)


# ---- verification --------------------------------------------------------------------------------


@INTEGERS
@pytest.mark.parametrize("values", [torch.float32, torch.int32, torch.int64])
def test_expand(integer: torch.dtype, values: torch.dtype) -> None:
    given = torch.tensor([0, 7, 3, 0, 5, 9]).to(values)
    output = torch.full((TOKENS + 2,), -7).to(values)
    C.expand_kernel_impl(output, given, ENDS.to(integer), 0, 1)
    assert output.tolist() == [1, 1, 1, 3, 1, 1, 1, 1, 9, 9, -7, -7]


@INTEGERS
@pytest.mark.parametrize("kind", ["right", "wrong", "mixed"])
@pytest.mark.parametrize("marked", [False, True], ids=["all greedy", "some greedy"])
def test_greedy(integer: torch.dtype, kind: str, marked: bool, seeded: torch.Generator) -> None:
    best, bonus = _ids(seeded, TOKENS), _ids(seeded, len(COUNTS), 1)
    wrong = {"right": [0], "wrong": [1], "mixed": [0, 1, 0]}[kind]
    drafts = (best + torch.tensor(wrong * TOKENS)[:TOKENS]) % VOCABULARY
    greedy = torch.tensor([True, True, False, True, False, True]) if marked else None
    output = torch.full((len(COUNTS), WIDTH), -1, dtype=integer)
    C.rejection_greedy_sample_kernel_impl(
        output, ENDS.to(integer), drafts.to(integer), best, bonus.to(integer), greedy, WIDTH - 1
    )
    chosen = torch.ones(len(COUNTS), dtype=torch.bool) if greedy is None else greedy
    expected = speculation.verified(ENDS, drafts, drafts == best, best, bonus, chosen, WIDTH)
    assert output.tolist() == expected


@INTEGERS
@pytest.mark.parametrize("certain", [True, False], ids=["certain drafts", "probable drafts"])
@pytest.mark.parametrize("uniform", [0.0, None, 1.0], ids=["accept", "draw", "reject"])
def test_random(
    integer: torch.dtype, certain: bool, uniform: float | None, seeded: torch.Generator
) -> None:
    target, draft = _probabilities(seeded, TOKENS, 5), _probabilities(seeded, TOKENS, 5)
    drafts, instead = _ids(seeded, TOKENS, most=5), _ids(seeded, TOKENS, most=5)
    drafts[4] = -1  # padding is rejected
    draft[5, drafts[5]] = 0.0  # impossible, and no reason to divide by zero
    bonus = _ids(seeded, len(COUNTS), most=5)
    limit = torch.rand(TOKENS, dtype=torch.float64, generator=seeded)
    if uniform is not None:
        limit.fill_(uniform)
    greedy = torch.tensor([False, True, False, False, False, False])
    output = torch.full((len(COUNTS), WIDTH), -1, dtype=integer)
    C.rejection_random_sample_kernel_impl(
        output,
        ENDS.to(integer),
        drafts.to(integer),
        None if certain else draft,
        target,
        bonus.to(integer),
        instead.to(integer),
        limit,
        greedy,
        WIDTH - 1,
        5,
        certain,
    )
    rows = torch.arange(TOKENS)
    p = target[rows, drafts]
    q = torch.ones(TOKENS) if certain else draft[rows, drafts]
    accepted = (drafts >= 0) & (q > 0) & (p / q >= limit)
    expected = speculation.verified(ENDS, drafts, accepted, instead, bonus, ~greedy, WIDTH)
    assert output.tolist() == expected
    if uniform is None:
        assert 0 < int(accepted.sum()) < TOKENS


@INTEGERS
@pytest.mark.parametrize("certain", [True, False], ids=["certain drafts", "probable drafts"])
@pytest.mark.parametrize("size", [1, 7, 64, 65, VOCABULARY])
def test_recovered(integer: torch.dtype, certain: bool, size: int, seeded: torch.Generator) -> None:
    target, draft = (_probabilities(seeded, TOKENS, size) for _ in range(2))
    draft[2] = target[2]  # nothing is left: any token of the vocabulary, by the host the first
    noise = 1 / torch.empty(len(COUNTS), size).exponential_(generator=seeded)
    request_of = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    drafts = (target * noise[request_of]).argmax(-1)  # what must not be recovered
    output = torch.full((TOKENS,), -1, dtype=integer)
    given = None if certain else draft
    C.sample_recovered_tokens_kernel_impl(
        output, ENDS.to(integer), drafts.to(integer), given, target, noise, size, certain
    )
    assert output.tolist() == speculation.recovered(ENDS, drafts, given, target, noise)


@pytest.mark.parametrize("certain", [True, False], ids=["certain drafts", "probable drafts"])
def test_what_is_sampled_is_the_targets(certain: bool, seeded: torch.Generator) -> None:
    """Over many draws: first tokens follow the target, whatever the draft proposed."""
    draws, size = 40_000, 6
    target = torch.tensor([0.35, 0.05, 0.2, 0.1, 0.3, 0.0])
    draft = torch.tensor([0.05, 0.3, 0.25, 0.3, 0.05, 0.05])
    if certain:
        drafts = torch.full((draws,), 2)
    else:
        drafts = draft.multinomial(draws, replacement=True, generator=seeded)
    ends = torch.arange(1, draws + 1)
    targets, given = target.expand(draws, size).contiguous(), draft.expand(draws, size).contiguous()
    noise = 1 / torch.empty(draws, size).exponential_(generator=seeded)
    instead, output = torch.empty(draws, dtype=torch.int64), torch.full((draws, 2), -1)
    probs = None if certain else given
    C.sample_recovered_tokens_kernel_impl(
        instead, ends, drafts, probs, targets, noise, size, certain
    )
    limit = torch.rand(draws, dtype=torch.float64, generator=seeded)
    bonus = torch.zeros(draws, dtype=torch.int64)
    C.rejection_random_sample_kernel_impl(
        output, ends, drafts, probs, targets, bonus, instead, limit, None, 1, size, certain
    )
    counted = output[:, 0].bincount(minlength=size) / draws
    # Five standard deviations of a count; a wrong distribution is off by several per cent.
    assert (counted - target).abs().max() < 5 * 0.5 / draws**0.5


def test_what_does_not_fit_is_refused() -> None:
    tokens, one = torch.arange(3), torch.tensor([3])
    output = torch.zeros(1, 3, dtype=torch.int32)
    op = C.rejection_greedy_sample_kernel_impl
    with pytest.raises(ValueError, match="3 drafts of one request are more than max_spec_len, 2"):
        op(output, one, tokens, tokens, one, None, 2)
    with pytest.raises(ValueError, match="output_token_ids has 3 entries, needed are 4"):
        op(output, one, tokens, tokens, one, None, 3)
    with pytest.raises(ValueError, match="must rise to at most 3"):
        op(output, torch.tensor([4]), tokens, tokens, one, None, 2)
    with pytest.raises(TypeError, match="draft_token_ids must be int32 or int64"):
        op(output, one, tokens.float(), tokens, one, None, 2)
    probs = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="draft_probs is missing"):
        C.sample_recovered_tokens_kernel_impl(tokens, one, tokens, None, probs, probs[:1], 4, False)


# ---- inputs of draft models ----------------------------------------------------------------------


@INTEGERS
def test_inputs(integer: torch.dtype) -> None:
    """Six requests with 3, 0, 1, 4, 0 and 2 drafts; the second is in its prompt."""
    starts = torch.tensor([0, 4, 9, 11, 16, 17, 20]).to(integer)
    valid = torch.tensor([4, 0, 1, 3, 1, 1]).to(integer)
    at, rejected = (torch.full((6,), -7, dtype=integer) for _ in range(2))
    C.eagle_prepare_inputs_padded_kernel_impl(ENDS.to(integer), valid, starts, at, rejected, 6)
    assert rejected.tolist() == [0, 0, 1, 2, 0, 2]
    assert at.tolist() == [3, 8, 9, 13, 16, 17]


@INTEGERS
def test_next_tokens(integer: torch.dtype) -> None:
    sampled = [[5, 6, 7], [8, -1, -1], [-1, -1, -1], [3, 4, -1], [1, 100, -1]]
    discarded = torch.tensor([False, False, False, True, False])
    tokens, counts = (torch.full((5,), -7, dtype=integer) for _ in range(2))
    backup = torch.arange(50, 56).to(integer)  # for one request more
    C.eagle_prepare_next_token_padded_kernel_impl(
        torch.tensor(sampled).to(integer), discarded, backup, tokens, counts, 100, 3, 5
    )
    assert tokens.tolist() == [7, 8, 52, 53, 1]
    assert counts.tolist() == [3, 1, 0, 0, 1]


@INTEGERS
def test_step(integer: torch.dtype, seeded: torch.Generator) -> None:
    """The last but one position fits, the last does not; slots behind the requests are padding."""
    positions = torch.tensor([0, 15, 16, 61, 62, 63]).to(integer)
    pages = torch.randperm(40, generator=seeded)[:24].view(6, 4).to(torch.int32)
    lengths = (positions + 1).to(torch.int32)
    slots = torch.full((8,), -7, dtype=torch.int64)
    table = torch.cat([pages, pages], 1)[:, :4]  # rows of a wider table
    C.eagle_step_slot_mapping_metadata_kernel_impl(
        positions, table, lengths, positions, slots, 16, 64, -1
    )
    assert positions.tolist() == [1, 16, 17, 62, 63, 0]
    assert lengths.tolist() == [2, 17, 18, 63, 64, 1]
    expected = [
        int(pages[row, position // 16]) * 16 + position % 16
        for row, position in enumerate([1, 16, 17, 62, 63])
    ]
    assert slots.tolist() == [*expected, -1, -1, -1]


def _expanded(integer: torch.dtype, slots: int, shift: bool) -> dict[str, list[Any]]:
    """Three requests of 3, 1 and 4 tokens, of which the last has two rejected."""
    starts, ends = torch.tensor([0, 3, 4, 8]), torch.tensor([2, 3, 5])
    outputs = 8 + 3 * (slots - shift)
    result = {
        "ids": torch.full((outputs + 1,), -7).to(integer),
        "positions": torch.full((outputs + 1,), -7),
        "rejected": torch.ones(outputs + 1, dtype=torch.bool),
        "masked": torch.ones(outputs + 1, dtype=torch.bool),
        "new": torch.full((3 * slots,), -7).to(integer),
        "hidden": torch.full((8,), -7).to(integer),
    }
    C.copy_and_expand_eagle_inputs_kernel_impl(
        torch.arange(10, 18).to(integer),
        torch.tensor([5, 6, 7, 0, 20, 21, 22, 23]),
        torch.tensor([91, 92, 93]).to(integer),
        *result.values(),
        starts.to(integer),
        ends.to(integer),
        0,
        77,
        8,
        slots,
        shift,
    )
    assert all(tensor.tolist()[-1] in (-7, True) for tensor in list(result.values())[:4])
    return {name: tensor.tolist() for name, tensor in result.items()}


@INTEGERS
def test_inputs_of_a_draft_model(integer: torch.dtype) -> None:
    found = _expanded(integer, slots=1, shift=False)
    assert found["ids"][:-1] == [10, 11, 12, 91, 13, 92, 14, 15, 93, 0, 0]
    assert found["positions"][:-1] == [5, 6, 7, 8, 0, 1, 20, 21, 22, 0, 0]
    assert found["rejected"][:-1] == [False] * 9 + [True] * 2
    assert found["masked"][:-1] == [False] * 11
    assert found["new"] == [3, 5, 8]
    assert found["hidden"] == [-7] * 8


@INTEGERS
def test_inputs_of_parallel_drafts(integer: torch.dtype) -> None:
    """The first token of each request goes, two slots are drafted in parallel."""
    found = _expanded(integer, slots=3, shift=True)
    assert found["ids"][:-1] == [11, 12, 91, 77, 77, 92, 77, 77, 15, 93, 77, 77, 0, 0]
    assert found["positions"][:-1] == [5, 6, 7, 8, 9, 0, 1, 2, 20, 21, 22, 23, 0, 0]
    assert found["rejected"][:-1] == [False] * 12 + [True] * 2
    masked = [place for place, marked in enumerate(found["masked"][:-1]) if marked]
    assert masked == [3, 4, 6, 7, 10, 11]
    assert found["new"] == [2, 3, 4, 5, 6, 7, 9, 10, 11]
    assert found["hidden"] == [0, 1, 2, 5, 8, 9, 10, 11]


@INTEGERS
@pytest.mark.parametrize("padded", [False, True])
def test_inputs_of_dflash(integer: torch.dtype, padded: bool) -> None:
    """Two requests of 3 and 2 tokens, one of the first rejected if there is padding."""
    starts, positions = torch.tensor([0, 3, 5]), torch.tensor([14, 15, 16, 0, 1])
    pages = torch.tensor([[4, 7], [2, 9]], dtype=torch.int32)
    out = {
        "ids": torch.full((6,), -7).to(integer),
        "context": torch.full((5,), -7),
        "queries": torch.full((6,), -7),
        "context slots": torch.full((5,), -7),
        "query slots": torch.full((6,), -7),
        "samples": torch.full((4,), -7).to(integer),
    }
    C.copy_and_expand_dflash_inputs_kernel_impl(
        torch.tensor([91, 92]).to(integer),
        positions,
        *out.values(),
        pages,
        starts.to(integer),
        torch.tensor([1, 0]).to(integer) if padded else None,
        77,
        16,
        3,
        2,
        5,
        padded,
    )
    found = {name: tensor.tolist() for name, tensor in out.items()}
    assert found["ids"] == [91, 77, 77, 92, 77, 77]
    assert found["context"] == positions.tolist()
    assert found["context slots"] == [78, 79, 112, 32, 33]
    first = 16 if padded else 17
    queries = [*range(first, first + 3), 2, 3, 4]
    assert found["queries"] == queries
    assert found["query slots"] == [7 * 16 + p - 16 for p in queries[:3]] + [34, 35, 36]
    assert found["samples"] == [1, 2, 4, 5]


# ---- drafts from text ----------------------------------------------------------------------------


@pytest.mark.parametrize("alphabet", [1, 2, 5, 50])
def test_drafts_from_text(alphabet: int, seeded: torch.Generator) -> None:
    rows, room, count = 40, 60, 4
    tokens = _ids(seeded, rows, room, most=alphabet).to(torch.int32)
    lengths = _ids(seeded, rows, most=room).to(torch.int32)
    lengths[:4] = torch.tensor([0, 1, 2, room])
    asked = [*range(rows - 1, -1, -2), 0]
    found = ops.look_up_drafts(tokens.numpy(), lengths.numpy(), asked, (2, 4), count, room)
    for row, drafts in zip(asked, found, strict=True):
        text = tokens[row, : lengths[row]].tolist()
        expected = speculation.drafts_from_text(text, 2, 4, min(count, room - len(text)))
        assert drafts == expected, (row, text)


def test_no_drafts_beyond_the_longest_request() -> None:
    tokens = np.array([[3, 4, 5, 3, 4, 0, 0]], dtype=np.int32)
    lengths = np.array([5], dtype=np.int32)
    for longest, expected in ((5, []), (6, [5]), (7, [5, 3]), (99, [5, 3, 4])):
        assert ops.look_up_drafts(tokens, lengths, [0], (1, 2), 9, longest) == [expected]
    assert ops.look_up_drafts(tokens, lengths, [], (1, 2), 9, 9) == []

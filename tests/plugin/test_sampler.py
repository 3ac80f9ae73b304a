"""This project's sampler beside the host's: the same draws, and the host's own where it must."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from cpu_backend.worker.sampler import CPUSampler

ROWS, VOCABULARY = 12, 4099


class Ban(MinPLogitsProcessor):
    """A logits processor of a user's own."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        logits[:, : VOCABULARY - 1] = float("-inf")
        return logits


def min_p(values: list[float], kind: type[MinPLogitsProcessor] = MinPLogitsProcessor) -> Any:
    processor = kind.__new__(kind)
    processor.min_p_count = sum(value > 0 for value in values)
    processor.min_p = torch.tensor(values).unsqueeze(1)
    return processor


def metadata(**changes: Any) -> SamplingMetadata:
    rows = torch.arange(ROWS)
    settings: dict[str, Any] = dict(
        temperature=0.3 + 0.2 * rows,
        all_greedy=False,
        all_random=True,
        top_p=None,
        top_k=None,
        generators={},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=torch.zeros(ROWS),
        presence_penalties=torch.zeros(ROWS),
        repetition_penalties=torch.ones(ROWS),
        output_token_ids=[[] for _ in range(ROWS)],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([min_p([0.0] * ROWS)]),
    )
    return SamplingMetadata(**settings | changes)


def choose(sampler: Sampler, logits: torch.Tensor, settings: SamplingMetadata) -> Any:
    torch.manual_seed(5)
    return sampler(logits.clone(), settings)


CASES: dict[str, dict[str, Any]] = {
    "temperature": {},
    "top-k": dict(top_k=torch.arange(1, ROWS + 1, dtype=torch.int32)),
    "top-p": dict(top_p=torch.linspace(0.1, 1.0, ROWS)),
    "min-p": dict(logitsprocs=LogitsProcessors([min_p([0.0, 0.1, 0.5] * 4)])),
    "all filters": dict(
        top_k=torch.full((ROWS,), 50, dtype=torch.int32),
        top_p=torch.full((ROWS,), 0.9),
        logitsprocs=LogitsProcessors([min_p([0.02] * ROWS)]),
    ),
    "some greedy": dict(temperature=torch.tensor([0.0, 0.8] * 6), all_random=False),
    "all greedy": dict(temperature=None, all_greedy=True, all_random=False),
    "logprobs": dict(max_num_logprobs=3),
    "penalties": dict(
        no_penalties=False,
        prompt_token_ids=torch.arange(ROWS * 30).view(ROWS, 30) % (VOCABULARY + 1),
        repetition_penalties=torch.full((ROWS,), 1.5),
        frequency_penalties=torch.full((ROWS,), 0.3),
        presence_penalties=torch.full((ROWS,), 0.2),
        output_token_ids=[list(range(row, 200, row + 1)) for row in range(ROWS)],
    ),
    "a processor of the user's": dict(logitsprocs=LogitsProcessors([min_p([0.1] * ROWS, Ban)])),
}


@pytest.mark.parametrize("case", CASES)
def test_chooses_what_the_host_chooses(case: str, seeded: torch.Generator) -> None:
    logits = 3 * torch.randn(ROWS, VOCABULARY, generator=seeded)
    expected = choose(Sampler(), logits, metadata(**CASES[case]))
    got = choose(CPUSampler(), logits, metadata(**CASES[case]))
    assert torch.equal(got.sampled_token_ids, expected.sampled_token_ids)
    if case == "logprobs":
        torch.testing.assert_close(got.logprobs_tensors[1], expected.logprobs_tensors[1])
    elif case == "a processor of the user's":
        assert set(got.sampled_token_ids.flatten().tolist()) == {VOCABULARY - 1}


def test_filtered_logits_are_returned_where_they_are_asked_for(seeded: torch.Generator) -> None:
    logits = torch.randn(ROWS, VOCABULARY, generator=seeded)
    settings = metadata(top_k=torch.full((ROWS,), 4, dtype=torch.int32), max_num_logprobs=8)
    _, logprobs = CPUSampler("processed_logprobs").sample(logits, settings)
    assert logprobs is not None
    assert (logprobs > float("-inf")).sum(-1).tolist() == [4] * ROWS


def test_a_requests_generator_decides_its_draw(seeded: torch.Generator) -> None:
    logits = torch.randn(ROWS, VOCABULARY, generator=seeded)

    def draw(seed: int) -> torch.Tensor:
        generators = {3: torch.Generator().manual_seed(seed)}
        tokens, _ = CPUSampler().sample(logits.clone(), metadata(generators=generators))
        return tokens

    first, second, other = draw(1), draw(1), draw(2)
    assert first[3] == second[3] != other[3]
    assert not torch.equal(first, second), "other requests draw anew"


def test_a_token_without_a_logit_has_no_probability(seeded: torch.Generator) -> None:
    logprobs = torch.randn(3, VOCABULARY, generator=seeded).log_softmax(-1)
    tokens = torch.tensor([5, VOCABULARY + 2, 7])  # an image's among a prompt's
    got = CPUSampler.gather_logprobs(logprobs, 2, tokens)
    expected = CPUSampler.gather_logprobs(logprobs[[0, 2]], 2, tokens[[0, 2]])
    assert got.logprob_token_ids[:, 0].tolist() == tokens.tolist()
    for ours, theirs in zip(got[:3], expected[:3], strict=True):
        assert torch.equal(ours[[0, 2]], theirs)
    assert got.logprobs[1, 0] == float("-inf")
    assert got.logprobs[1, 1:].isfinite().all()

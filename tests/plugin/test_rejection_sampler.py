"""The host's rejection sampler on this project's ops and sampler: what comes out has the target's
distribution, and depends on nobody else's drafts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from cpu_backend import ops
from cpu_backend.host import speculation
from cpu_backend.worker.sampler import CPUSampler
from cpu_backend.worker.speculation import CPURejectionSampler
from tests.plugin import test_sampler

REQUESTS, VOCABULARY, DRAFTS = 20_000, 6, 2


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """The host's Triton kernels are replaced for good, as in a server."""
    ops.load()
    speculation.register()


def settings(**changes: Any) -> SamplingMetadata:
    rows = torch.zeros(REQUESTS)
    given: dict[str, Any] = dict(
        temperature=rows + 1,
        frequency_penalties=rows,
        presence_penalties=rows,
        repetition_penalties=rows + 1,
        output_token_ids=[[] for _ in range(REQUESTS)],
        logitsprocs=test_sampler.LogitsProcessors([]),
    )
    return test_sampler.metadata(**given | changes)


def verify(
    draft: torch.Tensor | None,
    sampling: SamplingMetadata,
    logits: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Tokens [requests, drafts + 1]; each request has the same logits [drafts + 1, vocabulary].

    draft [vocabulary]: of what drafts are drawn; without it they are certain, and token 1.
    """
    count = REQUESTS * DRAFTS
    if draft is None:
        tokens = torch.ones(count, dtype=torch.int32)
    else:
        tokens = draft.multinomial(count, replacement=True, generator=generator).int()
    rows = torch.arange(REQUESTS * (DRAFTS + 1)).view(REQUESTS, DRAFTS + 1)
    each = torch.arange(1, REQUESTS + 1, dtype=torch.int32)
    metadata = SpecDecodeMetadata(
        draft_token_ids=tokens,
        num_draft_tokens=[DRAFTS] * REQUESTS,
        cu_num_draft_tokens=each * DRAFTS,
        cu_num_sampled_tokens=each * (DRAFTS + 1),
        target_logits_indices=rows[:, :DRAFTS].flatten(),
        bonus_logits_indices=rows[:, DRAFTS],
        logits_indices=rows.flatten(),
    )
    probs = None if draft is None else draft.repeat(count, 1)
    torch.manual_seed(11)
    sampler = CPURejectionSampler(CPUSampler())
    output = sampler(metadata, probs, logits.repeat(REQUESTS, 1), sampling)
    return output.sampled_token_ids


LOGITS = torch.tensor(
    [
        [1.0, 0.2, -0.5, 0.7, 0.0, -2.0],
        [-1.0, 1.5, 0.3, 0.0, 0.9, 0.1],
        [0.4, -0.6, 1.1, 0.2, -3.0, 0.8],
    ]
)
DRAFT = torch.tensor([0.1, 0.3, 0.05, 0.05, 0.3, 0.2])


@pytest.mark.parametrize("certain", [True, False], ids=["certain drafts", "probable drafts"])
@pytest.mark.parametrize("top_k", [None, 3])
def test_distribution(certain: bool, top_k: int | None, seeded: torch.Generator) -> None:
    """Of the token at each place, among the requests that have come so far."""
    k = None if top_k is None else torch.full((REQUESTS,), top_k, dtype=torch.int32)
    sampling = settings(temperature=torch.full((REQUESTS,), 0.7), top_k=k)
    output = verify(None if certain else DRAFT, sampling, LOGITS, seeded)
    scaled = LOGITS / 0.7
    if top_k is not None:
        scaled[scaled < scaled.topk(top_k).values[:, -1:]] = float("-inf")
    for place, expected in enumerate(scaled.softmax(-1)):
        came = output[:, place]
        came = came[came >= 0].long()
        assert len(came) > REQUESTS / 50
        share = came.bincount(minlength=VOCABULARY) / len(came)
        # Five standard deviations of a count.
        assert ((share - expected).abs() < 5 * 0.5 / len(came) ** 0.5).all(), (place, share)


def test_greedy_requests_beside_others(seeded: torch.Generator) -> None:
    temperature = torch.arange(REQUESTS) % 2 * 1.0
    sampling = settings(temperature=temperature, all_random=False)
    output = verify(None, sampling, LOGITS, seeded)
    # The second place takes the draft, token 1, where the first has.
    assert output[::2].unique(dim=0).tolist() == [[0, -1, -1]]
    assert len(output[1::2].unique(dim=0)) > VOCABULARY


def test_penalties_count_the_drafts_before(seeded: torch.Generator) -> None:
    """Token 1 is worth less at the second place, for it stands at the first."""
    rows = torch.zeros(REQUESTS)
    sampling = settings(
        temperature=None,
        all_greedy=True,
        all_random=False,
        no_penalties=False,
        presence_penalties=rows + 2,
        prompt_token_ids=torch.full((REQUESTS, 1), VOCABULARY),
        spec_token_ids=[[1] * DRAFTS for _ in range(REQUESTS)],
    )
    logits = torch.tensor([[0.0, 1.0, 0.5, 0, 0, 0]] * (DRAFTS + 1))
    output = verify(None, sampling, logits, seeded)
    assert output.unique(dim=0).tolist() == [[1, 2, -1]]

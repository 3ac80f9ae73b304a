"""The host's routers that are ops."""

from __future__ import annotations

import pytest
import torch

C = torch.ops._C


def scores(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    logits = logits.double()
    if scoring == "sigmoid":
        return 1 / (1 + (-logits).exp())
    if scoring == "softmax":
        return logits.exp() / logits.exp().sum(-1, keepdim=True)
    return (1 + logits.exp()).log().sqrt()


@pytest.mark.parametrize("scoring", ["sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
def test_biased_topk(
    scoring: str, renormalize: bool, scaled: bool, dtype: torch.dtype, seeded: torch.Generator
) -> None:
    tokens, experts, top_k = 11, 16, 4
    logits = (4 * torch.randn(tokens, experts, generator=seeded)).to(dtype)
    bias = torch.randn(experts, generator=seeded)
    weights, ids = C.biased_topk_cpu(
        logits, logits, bias, top_k, renormalize, scoring, 0, 2.5, scaled
    )
    assert weights.dtype == torch.float32
    assert ids.dtype == torch.int32
    every = scores(logits, scoring)
    wanted = (every + bias.double()).topk(top_k, -1).indices
    assert torch.equal(ids.sort(-1).values.long(), wanted.sort(-1).values)
    own = every.gather(-1, ids.long())
    if renormalize:
        own = own / own.sum(-1, keepdim=True) * (2.5 if scaled else 1)
    assert torch.allclose(weights.double(), own, rtol=1e-5)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sqrtsoftplus"])
def test_hash_topk(scoring: str, dtype: torch.dtype, seeded: torch.Generator) -> None:
    tokens, experts, top_k = 11, 16, 4
    logits = (4 * torch.randn(tokens, experts, generator=seeded)).to(dtype)
    table = torch.randint(0, experts, (tokens, top_k), generator=seeded).int()
    weights, ids = C.hash_topk_cpu(logits, table, top_k, scoring, 0, experts, 2.5)
    assert torch.equal(ids, table)
    assert ids.dtype == torch.int32
    own = scores(logits, scoring).gather(-1, table.long())
    if scoring != "softmax":
        own = own / own.sum(-1, keepdim=True) * 2.5
    assert torch.allclose(weights.double(), own, rtol=1e-5)


def test_scores_of_nothing_are_no_nan() -> None:
    logits = torch.full((1, 8), -1e4)
    weights, _ = C.hash_topk_cpu(logits, torch.zeros(1, 2).int(), 2, "sigmoid", 0, 8, 1.0)
    assert torch.equal(weights, torch.zeros(1, 2))


def test_what_routers_do_not_do_is_said() -> None:
    logits = torch.zeros(2, 8)
    with pytest.raises(NotImplementedError, match="shared experts"):
        C.biased_topk_cpu(logits, logits, logits[0], 2, True, "sigmoid", 1, 1.0, True)
    with pytest.raises(ValueError, match="scoring_func 'tanh'"):
        C.biased_topk_cpu(logits, logits, logits[0], 2, True, "tanh", 0, 1.0, True)
    with pytest.raises(ValueError, match="tid2eid"):
        C.hash_topk_cpu(logits, torch.zeros(2, 3).int(), 2, "sigmoid", 0, 8, 1.0)

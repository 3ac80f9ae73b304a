"""Models that read two texts at once score them as transformers does, over HTTP and offline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.conftest import mostly_slow
from tests.e2e.server import Server
from tests.features import rerankers
from tests.features.endpoints import post
from tests.features.offline import Offline
from tests.features.rerankers import QUERY, TEXTS, Reranker

BERT, XLM_ROBERTA = rerankers.KINDS
LONGEST = 512
OFFLINE = {"runner": "pooling", "dtype": "float32", "max_model_len": LONGEST}
EXACT = 1e-5


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reranker]:
    return functools.cache(lambda kind: rerankers.make(kind, tmp_path_factory.mktemp(kind)))


@pytest.fixture(scope="module", params=mostly_slow([BERT, XLM_ROBERTA], BERT))
def served(request: pytest.FixtureRequest, reranker: Callable[[str], Reranker]) -> Reranker:
    return reranker(request.param)


@pytest.fixture(scope="module")
def server(served: Reranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--runner", "pooling", "--dtype", "float32", "--max-model-len", str(LONGEST)]
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(str(served.folder), log, *options) as running:
        yield running


def test_score(server: Server, served: Reranker) -> None:
    reply = post(server, "/score", {"model": server.model, "text_1": QUERY, "text_2": TEXTS})
    ours = [item["score"] for item in reply["data"]]
    assert ours == pytest.approx(served.scores(QUERY, TEXTS), abs=EXACT)


def test_rerank_sorts_by_score(server: Server, served: Reranker) -> None:
    body = {"model": server.model, "query": QUERY, "documents": TEXTS, "top_n": 3}
    results = post(server, "/rerank", body)["results"]
    best = torch.tensor(served.scores(QUERY, TEXTS)).topk(3)
    assert [result["index"] for result in results] == best.indices.tolist()
    ours = [result["relevance_score"] for result in results]
    assert ours == pytest.approx(best.values.tolist(), abs=EXACT)


@pytest.mark.parametrize("limit", [9, 70])
def test_a_pair_that_is_cut(server: Server, served: Reranker, limit: int) -> None:
    """In the second text alone, or in both."""
    body = {"model": server.model, "text_1": QUERY, "text_2": TEXTS[-1]}
    [found] = post(server, "/score", {**body, "truncate_prompt_tokens": limit})["data"]
    [right] = served.scores(QUERY, TEXTS[-1:], truncation=True, max_length=limit)
    assert found["score"] == pytest.approx(right, abs=EXACT)


@pytest.fixture(scope="module")
def offline(reranker: Callable[[str], Reranker]) -> Iterator[Callable[[str], Offline]]:
    """``offline(kind)``: one engine after the other in the same process."""
    with Offline(str(reranker(BERT).folder), **OFFLINE) as engine:
        running = BERT

        def start(kind: str) -> Offline:
            nonlocal running
            if kind != running:
                engine.start(str(reranker(kind).folder), **OFFLINE)
                running = kind
            return engine

        yield start


def test_pairs_beside_single_texts(
    offline: Callable[[str], Offline], reranker: Callable[[str], Reranker]
) -> None:
    """The same tokens, in one batch, with segments that begin elsewhere or nowhere."""
    from vllm import PoolingParams

    ids = reranker(BERT).tokenizer(QUERY, TEXTS[1]).input_ids
    begins = [13, None, 0, 20, None]
    asked = [
        PoolingParams(extra_kwargs=None if begin is None else {"compressed_token_type_ids": begin})
        for begin in begins
    ]
    prompts = [{"prompt_token_ids": ids}] * len(begins)
    outputs = offline(BERT).encode(prompts, asked, pooling_task="classify", use_tqdm=False)
    places = torch.arange(len(ids))
    inputs = [
        {
            "input_ids": torch.tensor([ids]),
            "token_type_ids": (places >= (len(ids) if begin is None else begin)).long()[None],
        }
        for begin in begins
    ]
    right = [reranker(BERT).score(**tensors) for tensors in inputs]
    assert [float(output.outputs.data) for output in outputs] == pytest.approx(right, abs=EXACT)
    assert min((torch.tensor(right[:2] + right[2:4]).diff()).abs()) > 100 * EXACT


@pytest.mark.parametrize("kind", rerankers.KINDS)
def test_scores_offline(
    offline: Callable[[str], Offline], reranker: Callable[[str], Reranker], kind: str
) -> None:
    """Of one query with all texts, and of each text with another."""

    def ours(*texts: Any) -> list[float]:
        return [found.outputs.score for found in offline(kind).score(*texts, use_tqdm=False)]

    pairs = zip(TEXTS, reversed(TEXTS), strict=True)
    right = [reranker(kind).scores(first, [second])[0] for first, second in pairs]
    assert ours(QUERY, TEXTS) == pytest.approx(reranker(kind).scores(QUERY, TEXTS), abs=EXACT)
    assert ours(TEXTS, TEXTS[::-1]) == pytest.approx(right, abs=EXACT)

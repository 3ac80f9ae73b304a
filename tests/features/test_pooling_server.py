"""A server that embeds: its four endpoints against transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.e2e.server import Server
from tests.features.endpoints import post

QUERY = "What is the capital of France?"
TEXTS = ["Paris is the capital of France.", "Bananas are yellow.", "Berlin lies on the Spree."]
EXACT = 2e-5
DIMENSIONS = [64, 200]


@pytest.fixture(scope="module")
def server(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--runner", "pooling", "--dtype", "float32", "--max-model-len", "512"]
    options += ["--hf-overrides", json.dumps({"matryoshka_dimensions": DIMENSIONS})]
    with Server(model_path, tmp_path_factory.mktemp("server") / "log", *options) as running:
        yield running


@pytest.fixture(scope="module")
def embed(tokenizer: Any, load_reference: Callable[[], Any]) -> Callable[[str], torch.Tensor]:
    """The last token's hidden state, of length 1."""
    model = load_reference().model

    def compute(text: str) -> torch.Tensor:
        with torch.no_grad():
            hidden = model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state
        return torch.nn.functional.normalize(hidden[0, -1], dim=-1)

    return compute


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_embeddings(server: Server, embed: Callable[[str], torch.Tensor], path: str) -> None:
    body: dict[str, Any] = {"model": server.model, "input": TEXTS}
    if path == "/pooling":
        body["task"] = "embed"
    reply = post(server, path, body)
    assert [item["index"] for item in reply["data"]] == [0, 1, 2]
    ours = torch.tensor(
        [item["embedding" if "embedding" in item else "data"] for item in reply["data"]]
    )
    expected = torch.stack([embed(text) for text in TEXTS])
    torch.testing.assert_close(ours, expected, atol=EXACT, rtol=0)


@pytest.mark.parametrize("size", DIMENSIONS)
def test_dimensions(server: Server, embed: Callable[[str], torch.Tensor], size: int) -> None:
    body = {"model": server.model, "input": TEXTS, "dimensions": size}
    ours = [item["embedding"] for item in post(server, "/v1/embeddings", body)["data"]]
    cut = torch.stack([embed(text)[:size] for text in TEXTS])
    expected = torch.nn.functional.normalize(cut, dim=-1)
    torch.testing.assert_close(torch.tensor(ours), expected, atol=EXACT, rtol=0)


def test_other_dimensions_are_refused(server: Server) -> None:
    body = {"model": server.model, "input": TEXTS, "dimensions": 65}
    message = post(server, "/v1/embeddings", body, status=(400,))["error"]["message"]
    assert "only supports Matryoshka dimensions [64, 200], got 65" in message


def test_scores_are_cosines(server: Server, embed: Callable[[str], torch.Tensor]) -> None:
    reply = post(server, "/score", {"model": server.model, "text_1": QUERY, "text_2": TEXTS})
    ours = [item["score"] for item in reply["data"]]
    assert ours == pytest.approx([float(embed(QUERY) @ embed(text)) for text in TEXTS], abs=EXACT)


def test_rerank_sorts_by_score(server: Server, embed: Callable[[str], torch.Tensor]) -> None:
    body = {"model": server.model, "query": QUERY, "documents": TEXTS, "top_n": 2}
    results = post(server, "/rerank", body)["results"]
    scores = torch.stack([embed(QUERY) @ embed(text) for text in TEXTS])
    best = scores.topk(2)
    assert [result["index"] for result in results] == best.indices.tolist()
    ours = [result["relevance_score"] for result in results]
    assert ours == pytest.approx(best.values.tolist(), abs=EXACT)


def test_generation_is_refused(server: Server) -> None:
    body = {"model": server.model, "prompt": QUERY}
    post(server, "/v1/completions", body, status=(400, 404))

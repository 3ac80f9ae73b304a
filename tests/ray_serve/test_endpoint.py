"""What a client sees of two replicas: one OpenAI server."""

from __future__ import annotations

import asyncio
import random

import openai
import pytest

from tests.ray_serve.cluster import Endpoint, processes, send_all

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def text(seed: int, words: int) -> str:
    generator = random.Random(seed)
    return " ".join(generator.choice(["one", "two", "three", "four", "five"]) for _ in range(words))


def test_replicas_are_bound_to_nodes_of_their_own(endpoint: Endpoint) -> None:
    assert len(endpoint.metric("vllm:num_requests_running")) == 2
    names = sorted(endpoint.metric("vllm:num_requests_running"))
    assert [name.rpartition("/")[2] for name in names] == ["node0", "node1"]
    assert len(processes("ray::ServeReplica:default:engine")) == 2


def test_chat_streamed_and_not(endpoint: Endpoint) -> None:
    client = endpoint.client()
    options = {"model": endpoint.model, "messages": QUESTION, "temperature": 0, "max_tokens": 16}
    whole = client.chat.completions.create(**options).choices[0].message.content
    assert "Paris" in whole
    stream = client.chat.completions.create(**options, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole
    assert len(pieces) > 3


def test_completions_models_tokenize_and_health(endpoint: Endpoint) -> None:
    client = endpoint.client()
    reply = client.completions.create(model=endpoint.model, prompt="Once", max_tokens=5)
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 5
    assert [model.id for model in client.models.list()] == [endpoint.model]
    assert endpoint.get("/health").status_code == 200
    assert endpoint.get("/version").status_code == 200


def test_errors_of_the_host_arrive_as_they_are(endpoint: Endpoint) -> None:
    client = endpoint.client()
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=endpoint.model, prompt=[5] * 3000, max_tokens=4)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="another", prompt="x", max_tokens=4)
    assert endpoint.get("/v1/nothing").status_code == 404


def test_requests_go_where_their_prefix_is_cached(endpoint: Endpoint) -> None:
    client = endpoint.client()
    # Some 400 tokens each, three pages; so many that both replicas get some, whatever they hold.
    prefixes = [text(seed, 400) for seed in range(12)]
    before = endpoint.metric("vllm:prefix_cache_hits_total")
    for turn in range(3):
        for number, prefix in enumerate(prefixes):
            client.completions.create(
                model=endpoint.model, prompt=f"{prefix} {turn} {number}", max_tokens=2
            )
    after = endpoint.metric("vllm:prefix_cache_hits_total")
    hits = {replica: after[replica] - before[replica] for replica in after}
    # Every turn but the first finds three pages of 128 tokens, wherever the first one went.
    assert sum(hits.values()) == len(prefixes) * 2 * 3 * 128
    assert all(hits.values()), f"all prompts went to one replica: {hits}"


def test_overloaded_replica_sheds_even_what_it_has_cached(endpoint: Endpoint) -> None:
    prefix = text(77, 400)
    endpoint.client().completions.create(model=endpoint.model, prompt=prefix, max_tokens=2)
    before = endpoint.metric("vllm:request_success_total")
    # So long that all are there before the first is done, however fast the CPU is.
    body = {"model": endpoint.model, "max_tokens": 96, "ignore_eos": True}
    bodies = [{**body, "prompt": f"{prefix} {i}"} for i in range(24)]
    outcomes = asyncio.run(send_all(endpoint, bodies, 24, {}))
    assert all(outcome.complete for outcome in outcomes)
    after = endpoint.metric("vllm:request_success_total")
    served = [after[replica] - before[replica] for replica in after]
    assert sum(served) == 24
    assert min(served) >= 4, f"one replica did nearly everything: {served}"


def test_client_that_leaves_frees_the_replica(endpoint: Endpoint) -> None:
    stream = endpoint.client().completions.create(
        model=endpoint.model,
        prompt="Tell me a story",
        max_tokens=1900,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    assert sum(endpoint.metric("vllm:num_requests_running").values()) == 1
    stream.close()
    for _ in range(100):
        if sum(endpoint.metric("vllm:num_requests_running").values()) == 0:
            return
    raise AssertionError("the engine still writes for a client that has left")

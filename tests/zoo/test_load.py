"""A server under load: requests come and go, are given up, preempted and resumed, and find the
beginnings of others in the cache; each answer is what it is alone."""

from __future__ import annotations

import json
import random
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server
from tests.zoo import text
from tests.zoo.build import build

LENGTH, AT_ONCE, REQUESTS = 400, 12, 150
# Of the KV cache in GiB: a few requests of LENGTH tokens, so that others must give way.
CACHES = {
    "DeepseekV3ForCausalLM": 0.0012,
    "GraniteMoeHybridForCausalLM": 0.001,
    "HrmTextForCausalLM": 0.005,
    "Qwen3NextForCausalLM": 0.0012,
}

Body = dict[str, Any]


def bodies(model: str, chance: random.Random) -> list[Body]:
    """Greedy and seeded requests, most of which share a beginning."""
    shared = [chance.randrange(3, 900) for _ in range(200)]
    found = []
    for i in range(24):
        size = chance.choice([1, 2, 5, 17, 33, 80, 160, 300])
        own = [chance.randrange(3, 900) for _ in range(size)]
        prompt = shared[: size // 2] + own[size // 2 :] if i % 3 else own
        body = {
            "model": model,
            "prompt": prompt,
            "max_tokens": min(chance.choice([1, 10, 60, 180]), LENGTH - 10 - size),
            "temperature": float(i % 4 == 1),
            "seed": i,
            "n": 3 if i % 8 == 1 else 1,
            "ignore_eos": True,
            "return_token_ids": True,
            "detokenize": False,
        }
        found.append(body)
    return found


def post(server: Server, body: Body) -> Any:
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/v1/completions", data, kind)
    return urllib.request.urlopen(request, timeout=300)


def ask(server: Server, body: Body) -> list[list[int]]:
    with post(server, body) as answer:
        return [choice["token_ids"] for choice in json.load(answer)["choices"]]


def give_up(server: Server, body: Body, lines: int) -> None:
    """Close the connection after some lines of a stream."""
    with post(server, {**body, "stream": True}) as answer:
        for _ in range(lines):
            answer.readline()


@pytest.mark.slow
@pytest.mark.parametrize("name", CACHES)
def test_answers_under_load_are_those_of_requests_alone(name: str, tmp_path: Path) -> None:
    [spec] = [spec for spec in text.SPECS if spec.name == name]
    build(spec, tmp_path / "model")
    chance = random.Random(20)
    options = (
        f"--dtype bfloat16 --skip-tokenizer-init --enable-prefix-caching --max-num-seqs {AT_ONCE}"
    )
    lengths = f"--max-model-len {LENGTH} --max-num-batched-tokens {LENGTH}"
    server = Server(str(tmp_path / "model"), tmp_path / "log", *options.split(), *lengths.split())
    server.environ["VLLM_CPU_KVCACHE_SPACE"] = str(CACHES[name])
    with server, ThreadPoolExecutor(AT_ONCE) as clients:
        requests = bodies(server.model, chance)
        alone = [ask(server, body) for body in requests]
        sent = []
        for _ in range(REQUESTS):
            i = chance.randrange(len(requests))
            if chance.random() < 0.1:
                clients.submit(give_up, server, requests[i], chance.randrange(8))
            else:
                sent.append((i, clients.submit(ask, server, requests[i])))
        different = {i for i, answer in sent if answer.result() != alone[i]}
        assert not different
        assert server.metric("vllm:num_preemptions_total") > 0
        assert server.process.poll() is None

"""The server as people use it: one process started once, real requests over HTTP."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.server import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> bool:
    """Polls; the limit only keeps a failure from hanging."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def server(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(model_path, log, "--max-model-len", "2048") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_chat_answers_paris_streamed(server: Server, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=server.model, messages=QUESTION, temperature=0, max_tokens=20, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "Paris" in "".join(pieces)
    assert len([piece for piece in pieces if piece]) > 3


def test_start_explains_itself_and_compiles_nothing(server: Server) -> None:
    log = server.log()
    for words in ("instruction set", "KV cache holds", "threads", "dtype bfloat16", "ready"):
        assert any("cpu_backend" in line and words in line for line in log.splitlines()), words


def test_second_request_computes_only_what_the_first_did_not(
    server: Server, client: openai.OpenAI
) -> None:
    prefix = list(range(1000, 1640))  # five pages
    for tail, hits in ((17, 0), (18, 640)):
        before = server.metric("vllm:prefix_cache_hits_total")
        client.completions.create(
            model=server.model, prompt=[*prefix, tail], temperature=0, max_tokens=2
        )
        assert server.metric("vllm:prefix_cache_hits_total") - before == hits


def test_request_longer_than_the_context_is_refused(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=server.model, prompt=[5] * 3000, max_tokens=4)
    reply = client.chat.completions.create(model=server.model, messages=QUESTION, max_tokens=2)
    assert reply.choices


def test_sampling_with_a_seed_repeats_and_without_one_varies(
    server: Server, client: openai.OpenAI
) -> None:
    def draw(seed: int | None) -> str:
        reply = client.completions.create(
            model=server.model, prompt="Once", temperature=1.0, max_tokens=12, seed=seed
        )
        return reply.choices[0].text

    assert draw(3) == draw(3)
    assert len({draw(None) for _ in range(4)}) > 1


def test_top_k_top_p_and_penalties_run(server: Server, client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model=server.model,
        prompt="Once upon a time",
        temperature=0.7,
        top_p=0.8,
        frequency_penalty=0.5,
        presence_penalty=0.2,
        max_tokens=8,
        logprobs=3,
        extra_body={"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.2},
    )
    assert reply.choices[0].text


def test_client_that_leaves_frees_its_blocks(server: Server) -> None:
    stream = server.begin_to_generate()
    assert server.metric("vllm:num_requests_running") == 1
    stream.close()
    assert wait_until(lambda: server.metric("vllm:num_requests_running") == 0)
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_idle_server_does_not_spin(server: Server) -> None:
    def ticks() -> int:
        fields = [Path(f"/proc/{pid}/stat").read_text().split()[13:15] for pid in server.group()]
        return sum(int(field) for pair in fields for field in pair)

    time.sleep(1)
    before = ticks()
    time.sleep(3)
    used = (ticks() - before) / os.sysconf("SC_CLK_TCK") / 3
    assert used < 0.5  # one spinning thread would use 1


@pytest.mark.parametrize("options", [(), ("-pp", "2")], ids=["terminated", "Ctrl-C, two ranks"])
def test_end_during_generation_leaves_no_process_and_no_file(
    options: tuple[str, ...], model_path: str, tmp_path: Path
) -> None:
    # Names of sockets are short, and so has to be the folder's.
    with tempfile.TemporaryDirectory() as name:
        running = Server(model_path, tmp_path / "log", "--max-model-len", "2048", *options)
        running.environ["TMPDIR"] = name
        with running:
            assert any(path.is_socket() for path in Path(name).rglob("*"))
            running.begin_to_generate()
            if options:
                os.killpg(running.process.pid, signal.SIGINT)
            else:
                running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(60) == 0
            assert wait_until(lambda: not running.group(), 20)
        left = {path.name.partition("_")[0] for path in Path(name).iterdir()}
        assert left <= {"cpu", "torchinductor"}  # folders that all servers share

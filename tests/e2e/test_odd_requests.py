"""One server that gets odd requests, hangs for a while, and is stopped while it answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import Server

HEALTH_SECONDS = 3


@pytest.fixture(scope="module")
def server(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("odd") / "log"
    running = Server(model_path, log, "--max-model-len", "2048")
    running.environ["CPU_BACKEND_HEALTH_SECONDS"] = str(HEALTH_SECONDS)
    with running:
        yield running


def post(server: Server, body: dict[str, Any], path: str = "/v1/completions") -> tuple[int, str]:
    """Status and text of the answer to ``body`` and the model's name."""
    request = urllib.request.Request(
        server.url + path,
        data=json.dumps({"model": server.model, "max_tokens": 12, **body}).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def constrained(**constraint: Any) -> dict[str, Any]:
    return {"prompt": "Hi", "structured_outputs": constraint}


ODD = {
    "half a pair in stop": {"prompt": "Hi", "stop": ["\ud800"]},
    "half a pair in bad_words": {"prompt": "Hi", "bad_words": ["\udc00"]},
    "half a pair in prompt": {"prompt": "a\ud800b"},
    "half a pair in regex": constrained(regex="\ud800"),
    "class without a character": constrained(regex=r"[^\s\S]"),
    "broken regex": constrained(regex="("),
    "empty grammar": constrained(grammar=""),
    "blank grammar": constrained(grammar=" \n"),
    "grammar without a body": constrained(grammar="root ::= "),
    "rule without a body": constrained(grammar='root ::= a "b"\na ::= \nc ::= "d"'),
    "recursive grammar": constrained(grammar="root ::= root"),
    "mutual recursion": constrained(grammar="root ::= a\na ::= root"),
    "recursive lark grammar": constrained(grammar="start: start"),
    "recursive schema": constrained(json={"$ref": "#"}),
    "schema without an end": constrained(
        json={"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    ),
    "schema of no type": constrained(json={"type": "foo"}),
    "schema as a word": constrained(json="plain"),
    "word as a constraint": {"prompt": "Hi", "structured_outputs": "plain"},
    "list as a constraint": {"prompt": "Hi", "structured_outputs": []},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_request_is_refused_with_a_sentence(server: Server, case: str) -> None:
    status, text = post(server, ODD[case])
    assert status == 400, text
    error = json.loads(text)["error"]
    assert error["type"] == "BadRequestError"
    assert len(error["message"]) > 10


def test_odd_chat_request_is_refused(server: Server) -> None:
    messages = [{"role": "user", "content": "\ud800"}]
    assert post(server, {"messages": messages}, "/v1/chat/completions")[0] == 400
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "response_format": schema}
    assert post(server, body, "/v1/chat/completions")[0] == 400


USUAL: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    # Two that one library of constraints reads, one that only the other reads, the first again.
    "regex": (constrained(regex="(yes|no)"), lambda text: text in ("yes", "no")),
    "letters": (constrained(regex=r"\p{L}{3}"), lambda text: len(text) == 3 and text.isalpha()),
    "multiple": (
        constrained(json={"type": "integer", "multipleOf": 5, "minimum": 5, "maximum": 95}),
        lambda text: int(text) % 5 == 0,
    ),
    "grammar": (
        constrained(grammar='root ::= "(" root ")" | "x"'),
        lambda text: bool(re.fullmatch(r"\(*x?\)*", text)),
    ),
    "choice": (constrained(choice=["left", "right"]), lambda text: text in ("left", "right")),
    "pair": ({"prompt": "\U0001f600", "stop": ["\U0001f600"]}, lambda text: True),
}


@pytest.mark.parametrize("case", USUAL)
def test_usual_request_is_answered_beside_odd_ones(server: Server, case: str) -> None:
    body, is_right = USUAL[case]
    status, text = post(server, body)
    assert status == 200, text
    assert is_right(json.loads(text)["choices"][0]["text"]), text


def engine_process(server: Server) -> int:
    [pid] = {int(pid) for pid in re.findall(r"\(EngineCore pid=(\d+)\)", server.log())}
    return pid


def health(server: Server) -> int:
    try:
        with urllib.request.urlopen(f"{server.url}/health", timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def wait_for_health(server: Server, status: int) -> float:
    """Seconds until /health answers ``status``."""
    start = time.monotonic()
    while health(server) != status:
        assert time.monotonic() - start < 60
        time.sleep(0.2)
    return time.monotonic() - start


def test_a_stopped_engine_is_not_healthy_until_it_goes_on(server: Server) -> None:
    assert health(server) == 200
    os.kill(engine_process(server), signal.SIGSTOP)
    try:
        assert wait_for_health(server, 503) >= HEALTH_SECONDS
        assert "has given no sign of life" in server.log()
    finally:
        os.kill(engine_process(server), signal.SIGCONT)
    wait_for_health(server, 200)
    assert post(server, {"prompt": "Hi"})[0] == 200


def test_an_orderly_stop_under_load_leaves_a_clean_log(server: Server) -> None:
    """The last test of this server."""
    body = {"prompt": "Tell me a story", "max_tokens": 1900, "ignore_eos": True}

    def ask(stream: bool) -> None:
        with contextlib.suppress(OSError):  # some are cut off
            post(server, {**body, "stream": stream})

    before = server.metric("vllm:generation_tokens_total")
    clients = [threading.Thread(target=ask, args=(i % 2 == 0,)) for i in range(6)]
    for client in clients:
        client.start()
    while server.metric("vllm:generation_tokens_total") < before + 30:
        time.sleep(0.05)
    said = len(server.log())
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0, server.log()[said:]
    for client in clients:
        client.join(60)
    last = server.log()[said:]
    for word in ("EngineDeadError", "Traceback", "ERROR", "unexpectedly"):
        assert word not in last, last
    assert Path(f"/proc/{server.process.pid}").exists() is False

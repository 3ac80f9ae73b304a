"""The nginx and HAProxy examples, in front of two real servers of one core each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import openai
import pytest

from tests.e2e.server import Server, free_port
from tests.tools import find

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIGS = {"nginx": "nginx/nginx.conf", "haproxy": "haproxy/haproxy.cfg"}
NEEDED = {name: pytest.mark.needs(name) for name in CONFIGS}


@pytest.fixture
def servers(model_path: str, tmp_path: Path) -> Iterator[list[Server]]:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        both = []
        for node in range(2):
            server = Server(model_path, tmp_path / f"log{node}", "--max-model-len", "2048")
            server.environ = {
                "CPU_BACKEND_NUMA": f"{first}|{second}",
                "CPU_VISIBLE_MEMORY_NODES": str(node),
            }
            both.append(stack.enter_context(server))
        yield both


class Proxy:
    """The distribution's program with an example's configuration, on other ports and folders."""

    def __init__(
        self, name: str, addresses: list[str], folder: Path, *changes: tuple[str, str]
    ) -> None:
        program = str(find(name))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        text = (EXAMPLES / CONFIGS[name]).read_text()
        for example, real in (
            ("127.0.0.1:8001", addresses[0]),
            ("127.0.0.1:8002", addresses[1]),
            (
                ":8000" if name == "haproxy" else "8000",
                f":{port}" if name == "haproxy" else str(port),
            ),
            ("/tmp/", f"{folder}/"),
            *changes,
        ):
            text = text.replace(example, real)
        config = folder / "proxy.conf"
        config.write_text(text)
        options = {"nginx": ["-g", "daemon off;", "-c"], "haproxy": ["-db", "-f"]}[name]
        self.process = subprocess.Popen([program, *options, str(config)])

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


@pytest.fixture
def proxy(name: str, servers: list[Server], tmp_path: Path) -> Iterator[Proxy]:
    addresses = [server.url.removeprefix("http://") for server in servers]
    running = Proxy(name, addresses, tmp_path)
    deadline = time.monotonic() + 60
    while True:
        try:
            if httpx.get(f"{running.url}/health").status_code == 200:
                break
        except httpx.HTTPError:
            pass
        assert running.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    yield running
    running.stop()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("nginx", marks=NEEDED["nginx"]),
        pytest.param("haproxy", marks=[NEEDED["haproxy"], pytest.mark.slow]),
    ],
)
def test_proxy_spreads_keeps_conversations_streams_and_survives_a_server(
    proxy: Proxy, servers: list[Server]
) -> None:
    model = servers[0].model
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0)

    def ask(**headers: str) -> str | None:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        reply = client.chat.completions.create(
            model=model, messages=question, temperature=0, max_tokens=12, extra_headers=headers
        )
        return reply.choices[0].message.content

    def served() -> list[float]:
        return [server.metric("vllm:request_success_total") for server in servers]

    # Without a session both get some; a session stays with one.
    for _ in range(12):
        assert "Paris" in (ask() or "")
    assert all(served())
    before = served()
    for _ in range(6):
        ask(**{"X-Session-Id": "conversation 7"})
    assert sorted(now - then for now, then in zip(served(), before, strict=True)) == [0, 6]

    # A stream arrives piece by piece: the first one long before the last.
    start = time.monotonic()
    stream = client.completions.create(
        model=model,
        prompt="Once",
        max_tokens=200,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    *arrivals, (_, usage) = [(time.monotonic() - start, chunk.usage) for chunk in stream]
    assert usage is not None
    assert usage.completion_tokens == 200
    assert arrivals[0][0] < arrivals[-1][0] / 2

    # One server is killed: every request is answered by the other one.
    os.killpg(servers[1].process.pid, signal.SIGKILL)
    for _ in range(12):
        assert "Paris" in (ask() or "")

    # Nobody there: refused at once, with the time to come back.
    os.killpg(servers[0].process.pid, signal.SIGKILL)
    time.sleep(4)  # HAProxy asks for health once a second and believes the second failure
    with pytest.raises(openai.InternalServerError) as refused:
        ask()
    assert refused.value.status_code == 503
    assert refused.value.response.headers["retry-after"] == "5"


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark) for name, mark in NEEDED.items()])
def test_proxy_refuses_what_does_not_fit(name: str, tmp_path: Path) -> None:
    """Two servers that never answer stand for two that are full; two places instead of hundreds."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    proxy = Proxy(
        name,
        addresses,
        tmp_path,
        ("limit_conn requests 256", "limit_conn requests 2"),
        ("maxconn 64", "maxconn 1"),
        ("queue(engines) gt 64", "queue(engines) gt 0"),
        ("  option httpchk GET /health\n", ""),
    )
    statuses: list[tuple[int, str]] = []

    def ask() -> None:
        try:
            reply = httpx.post(f"{proxy.url}/v1/completions", json={}, timeout=3)
        except httpx.TimeoutException:
            return  # it has a place, or waits for one
        statuses.append((reply.status_code, reply.headers.get("retry-after", "")))

    try:
        time.sleep(1)
        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
            time.sleep(0.05)
        for client in clients:
            client.join()
    finally:
        proxy.stop()
        for listener in listeners:
            listener.close()
    assert statuses.count((429, "5")) >= 4
    assert set(statuses) == {(429, "5")}

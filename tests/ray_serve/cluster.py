"""A Ray cluster on this machine, two declared NUMA nodes of one core each, and the application."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

START_SECONDS = 300
OPTIONS = "--dtype float32 --max-model-len 2048 --max-num-seqs 16"
MARK = "CPU_BACKEND_TEST_CLUSTER"


@dataclass
class Endpoint:
    """The application's one address."""

    url: str
    model: str

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=60)

    def metric(self, name: str) -> dict[str, float]:
        """A metric summed per replica."""
        sums: dict[str, float] = {}
        for labels, value in re.findall(
            rf"^{name}{{([^}}]*)}} (\S+)$", self.get("/metrics").text, re.M
        ):
            replica = re.search(r'replica="([^"]*)"', labels)
            assert replica is not None, labels
            sums[replica[1]] = sums.get(replica[1], 0.0) + float(value)
        return sums

    def wait_for_replicas(self, count: int) -> None:
        """Until so many replicas answer with their metrics."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if len(self.metric("vllm:num_requests_running")) == count:
                    return
            except (httpx.HTTPError, AssertionError):
                pass
            assert time.monotonic() < deadline, f"not {count} replicas within {START_SECONDS} s"
            time.sleep(0.5)


def processes(title: str) -> list[int]:
    """Processes of this cluster whose title begins so."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            environ = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if command.startswith(title) and f"{MARK}={os.environ[MARK]}" in environ:
            found.append(int(entry.name))
    return found


@dataclass
class Outcome:
    """How one request ended: a status, or what happened to its stream."""

    status: int
    streamed: bool
    tokens: int = 0
    error_event: bool = False
    retry_after: str = ""

    @property
    def complete(self) -> bool:
        return self.status == 200 and self.tokens > 0 and not self.error_event


async def send(http: httpx.AsyncClient, endpoint: Endpoint, body: dict[str, Any]) -> Outcome:
    """One completion, streamed or not."""
    streamed = bool(body.get("stream"))
    if streamed:  # an event of a busy server may carry several tokens
        counted = {"include_usage": True, "continuous_usage_stats": True}
        body = {**body, "stream_options": counted}
    async with http.stream("POST", f"{endpoint.url}/v1/completions", json=body) as reply:
        outcome = Outcome(reply.status_code, streamed)
        outcome.retry_after = reply.headers.get("retry-after", "")
        if not streamed:
            fields = json.loads(await reply.aread())
            if reply.status_code == 200:
                outcome.tokens = fields["usage"]["completion_tokens"]
            return outcome
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                outcome.error_event |= "error" in event
                if usage := event.get("usage"):
                    outcome.tokens = usage["completion_tokens"]
        return outcome


async def send_all(
    endpoint: Endpoint, bodies: list[dict[str, Any]], at_once: int, events: dict[int, Any]
) -> list[Outcome]:
    """All requests, ``at_once`` at a time; ``events[i]`` is called when i have been finished."""
    places = asyncio.Semaphore(at_once)
    done = 0

    async def one(http: httpx.AsyncClient, body: dict[str, Any]) -> Outcome:
        nonlocal done
        async with places:
            outcome = await send(http, endpoint, body)
        done += 1
        if done in events:
            await asyncio.to_thread(events[done])
        return outcome

    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=600, limits=limits) as http:
        return await asyncio.gather(*(one(http, body) for body in bodies))


def wait_for_http(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            pass
        assert time.monotonic() < deadline, f"{url} did not become healthy"
        time.sleep(0.3)

"""One engine on one NUMA node, and the host's OpenAI app called without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from cpu_backend.ray_serve.settings import Settings

logger = logging.getLogger("ray.serve")
TAKE_NODE_SECONDS = 120.0
WATCH_SECONDS = 0.2


@dataclass(frozen=True)
class Call:
    """A request as the gateway received it."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(frozen=True)
class Accepted:
    """First item of every answer: the replica has begun; ``replica`` names it."""

    replica: str


@dataclass(frozen=True)
class Start:
    """Second item: status and headers.  All further items are bytes of the body."""

    status: int
    headers: list[tuple[bytes, bytes]]


class Replica:
    """The class behind the Serve deployment of engines."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc] # Serve awaits it
        self._stack = contextlib.AsyncExitStack()
        self.node = await asyncio.to_thread(_bind_to_node)
        self._app, self._engine = await self._start(settings)
        self._watch = asyncio.create_task(self._end_with_engine())
        self.name = f"{os.uname().nodename}/node{self.node}"

    async def _start(self, settings: Settings) -> tuple[Any, Any]:
        # Not before the node is chosen: importing the host reads the environment.
        from cpu_backend.host import application

        return await application.start(self._stack, settings.command_line())

    async def _end_with_engine(self) -> None:
        """A replica without its engine ends at once: whatever it was asked is tried elsewhere, and
        Serve starts a new one."""
        while not self._engine.errored:
            await asyncio.sleep(WATCH_SECONDS)
        os._exit(1)

    async def answer(
        self, call: Call, chain: list[int], number: int | None
    ) -> AsyncIterator[Accepted | Start | bytes]:
        """Run the app on ``call``; ``chain`` and ``number`` are for the router."""
        del chain, number
        yield Accepted(self.name)
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        leaving = asyncio.Event()
        task = asyncio.create_task(self._run(call, messages, leaving))
        try:
            while True:
                message = await messages.get()
                if message["type"] == "http.response.start":
                    if message["status"] >= 500 and self._engine.errored:
                        os._exit(1)  # as _end_with_engine would in a moment
                    yield Start(message["status"], list(message.get("headers", [])))
                elif body := message.get("body", b""):
                    yield bytes(body)
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    return
        finally:
            leaving.set()  # the app sees that the client has left, and the engine aborts
            with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(asyncio.shield(task), timeout=5)
            task.cancel()

    async def _run(
        self, call: Call, messages: asyncio.Queue[dict[str, Any]], leaving: asyncio.Event
    ) -> None:
        """The ASGI side: one request message, then nothing until the client leaves."""
        body = [{"type": "http.request", "body": call.body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if body:
                return body.pop()
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            await messages.put(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": call.method,
            "scheme": "http",
            "path": call.path,
            "raw_path": call.path.encode(),
            "query_string": call.query,
            "root_path": "",
            "headers": call.headers,
            "client": None,
            "server": None,
            "state": {},
        }
        try:
            await self._app(scope, receive, send)
        except Exception:
            logger.exception("The app failed on %s.", call.path)
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    def record_replica_metadata(self) -> dict[str, Any]:
        """For the router, once: how much of the past the cache can hold."""
        cache = self._engine.vllm_config.cache_config
        blocks = cache.num_gpu_blocks or 0
        return {"cache_tokens": blocks * cache.block_size, "name": self.name}

    async def check_health(self) -> None:
        """Serve replaces a replica for which this raises."""
        await self._engine.check_health()

    async def __del__(self) -> None:
        self._watch.cancel()
        await self._stack.aclose()


def _bind_to_node() -> int:
    """Take a free node of this machine; the engine, a child process, inherits the choice."""
    from cpu_backend.ray_serve.places import take_node, usable_nodes
    from cpu_backend.runtime.plan import Machine

    node = take_node(usable_nodes(Machine.read()), TAKE_NODE_SECONDS)
    os.environ["CPU_VISIBLE_MEMORY_NODES"] = str(node)
    os.environ["CPU_BACKEND_DEVICE"] = "cpu"
    # Ray sets it to the number of CPUs that the actor asked for; the node has its own.
    os.environ.pop("OMP_NUM_THREADS", None)
    return node

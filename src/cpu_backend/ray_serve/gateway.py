"""The HTTP side: one endpoint, limits instead of endless queues, retries when a replica dies."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import json
import logging
import math
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle

from cpu_backend.ray_serve import metrics
from cpu_backend.ray_serve.prefix import chunks_of
from cpu_backend.ray_serve.replica import Accepted, Call, Start
from cpu_backend.ray_serve.settings import Settings

logger = logging.getLogger("ray.serve")
app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

HEALTH_SECONDS = 10.0
RATE_SECONDS = 30.0  # over which the rate of answers is taken, for Retry-After
RETRY_AFTER_MAX = 60
HOP_HEADERS = {b"content-length", b"transfer-encoding", b"connection", b"date", b"server"}


class ReplicaLostError(RuntimeError):
    """The replica that worked on a request is gone, and with it what it had done."""


class RefusedError(RuntimeError):
    """No place for the request; ``status`` is 429 when all are busy, 503 when nobody is there."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gateway:
    """The class behind the Serve deployment that takes HTTP requests."""

    def __init__(self, replicas: DeploymentHandle, settings: Settings, count: int) -> None:
        self._replicas = replicas.options(stream=True)
        self._settings = settings
        self._count = count
        self._finished: collections.deque[float] = collections.deque()
        self._counters = metrics.Counters()

    @app.get("/health")
    async def health(self) -> Response:
        """200 while at least one engine is well."""
        call = Call("GET", "/health", b"", [], b"")
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                start, body = await self._collect(call, [], None)
        except (RefusedError, ReplicaLostError, TimeoutError) as error:
            return self._refusal(503, f"no replica is well: {error}")
        return Response(body, start.status)

    @app.get("/metrics")
    async def all_metrics(self) -> Response:
        """The metrics of all replicas, each with a label that names it, and the gateway's own."""
        call = Call("GET", "/metrics", b"", [], b"")
        # Serve tells calls apart by the id of the request in whose context they are made, so calls
        # at the same time need a context each; in a shared one all but the last would never start.
        tasks = (
            asyncio.create_task(self._named(call, number), context=contextvars.Context())
            for number in range(self._count)
        )
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        texts = dict(answer for answer in answers if isinstance(answer, tuple))
        return Response(metrics.merge(texts, self._counters), media_type=metrics.CONTENT_TYPE)

    @app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def forward(self, request: Request) -> Response:
        """Everything else is the host's: chat, completions, embeddings, models, tokenizing, ..."""
        body = await request.body()
        headers = [(k, v) for k, v in request.headers.raw if k not in HOP_HEADERS]
        headers.append((b"content-length", str(len(body)).encode()))
        query = request.url.query.encode()
        call = Call(request.method, request.url.path, query, headers, body)
        chain, streamed = _read(body)
        for attempt in range(self._settings.retries + 1):
            try:
                if streamed:
                    return await self._stream(call, chain)
                start, content = await self._collect(call, chain, None)
                return Response(content, start.status, headers=_headers(start))
            except RefusedError as refusal:
                self._counters.refused[refusal.status] += 1
                return self._refusal(refusal.status, str(refusal))
            except ReplicaLostError as error:
                logger.warning("Attempt %d of %s failed: %s", attempt + 1, call.path, error)
                self._counters.retried += 1
        return self._refusal(503, "the replicas that worked on this request died")

    # ---- calling replicas ------------------------------------------------------------------------

    async def _items(
        self, call: Call, chain: list[int], number: int | None
    ) -> AsyncIterator[Accepted | Start | bytes]:
        """An answer item by item; RefusedError before the first, ReplicaLostError at any time."""
        answer = self._replicas.answer.remote(call, chain, number)
        ended = False
        try:
            try:
                async with asyncio.timeout(self._settings.waiting_seconds):
                    accepted = await anext(answer)
            except TimeoutError:
                raise RefusedError(503, "no replica has had a place in time") from None
            except BackPressureError:
                ended = True  # nothing was begun, and cancel() would raise this error once more
                raise RefusedError(429, "all replicas are busy and enough requests wait") from None
            yield accepted
            async for item in answer:
                yield item
            ended = True
        except RayActorError as error:
            raise ReplicaLostError(_first_line(error)) from error
        finally:
            if not ended:
                answer.cancel()  # the client has left, or nobody would read the rest
            self._finished.append(time.monotonic())

    async def _collect(
        self, call: Call, chain: list[int], number: int | None
    ) -> tuple[Start, bytes]:
        start, body = Start(500, []), bytearray()
        async for item in self._items(call, chain, number):
            if isinstance(item, Start):
                start = item
            elif isinstance(item, bytes):
                body += item
        return start, bytes(body)

    async def _named(self, call: Call, number: int) -> tuple[str, str]:
        name, body = "", bytearray()
        async for item in self._items(call, [], number):
            if isinstance(item, Accepted):
                name = item.replica
            elif isinstance(item, bytes):
                body += item
        return name, body.decode()

    async def _stream(self, call: Call, chain: list[int]) -> Response:
        """Up to the first byte a dead replica is retried by the caller; after that the stream ends
        with an error event, as what the client has seen cannot be taken back."""
        items = self._items(call, chain, None)
        start: Start | None = None
        async for item in items:
            if isinstance(item, Start):
                start = item
                break
        assert start is not None
        first = await anext(items, None)

        async def rest() -> AsyncIterator[bytes]:
            try:
                if isinstance(first, bytes):
                    yield first
                async for item in items:
                    if isinstance(item, bytes):
                        yield item
            except ReplicaLostError as error:
                self._counters.broken_streams += 1
                yield _error_event(str(error))
            finally:
                await items.aclose()  # type: ignore[attr-defined]

        return StreamingResponse(rest(), start.status, headers=_headers(start))

    def _refusal(self, status: int, reason: str) -> Response:
        error = {"message": f"{reason}; try again later.", "type": "overloaded", "code": status}
        retry = {"Retry-After": str(self._retry_after())}
        return JSONResponse({"error": error}, status, headers=retry)

    def _retry_after(self) -> int:
        """Seconds until a place should be free, from how fast requests end these days."""
        now = time.monotonic()
        while self._finished and self._finished[0] < now - RATE_SECONDS:
            self._finished.popleft()
        rate = len(self._finished) / RATE_SECONDS
        expected = self._settings.max_waiting / rate if rate else RETRY_AFTER_MAX / 6
        return max(1, min(RETRY_AFTER_MAX, math.ceil(expected)))


def _read(body: bytes) -> tuple[list[int], bool]:
    """The prompt's chain, and whether the answer is to be streamed."""
    try:
        fields: Any = json.loads(body)
    except ValueError:
        return [], False
    if not isinstance(fields, dict):
        return [], False
    return chunks_of(fields), fields.get("stream") is True


def _headers(start: Start) -> dict[str, str]:
    return {k.decode(): v.decode() for k, v in start.headers if k.lower() not in HOP_HEADERS}


def _error_event(reason: str) -> bytes:
    message = f"The replica that wrote this answer has died ({reason}); ask again."
    error = {"message": message, "type": "replica_died", "code": 502}
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

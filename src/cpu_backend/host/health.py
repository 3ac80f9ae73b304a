"""An engine that hangs is not healthy.

What: the engine answers at a socket (serving/heartbeat.py), which ``check_health`` asks.
Why: /health calls an engine that hangs well.
Since: 0.32
Until: the host asks its engine.
"""

from __future__ import annotations

import inspect
import logging
import time
from typing import Any

from cpu_backend import envs
from cpu_backend.host.seam import patch
from cpu_backend.serving.heartbeat import Answerer, Asker, name

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

CORE = "vllm.v1.engine.core"


# ---- in the engine's process ---------------------------------------------------------------------


@patch(CORE, "EngineCoreProc.__init__(self, vllm_config, ...)")
def answer(original: Any) -> Any:
    """From when the engine has started."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        self._busy_since = None

        def busy() -> float:
            since = self._busy_since
            return 0.0 if since is None else time.monotonic() - since

        names = [name(address, self.engine_index) for address in self.addresses.inputs]
        try:
            self._answerer = Answerer(names, busy)
        except OSError as error:
            logger.warning("cpu_backend: /health cannot tell whether the engine hangs: %s.", error)

    return __init__


@patch(CORE, "EngineCoreProc._process_engine_step(self)")
def step(original: Any) -> Any:
    """Note when it has begun."""
    return _timed(original)


@patch(CORE, "EngineCoreProc._handle_client_request(self, request_type, request)")
def handle(original: Any) -> Any:
    """The same."""
    return _timed(original)


def _timed(original: Any) -> Any:
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._busy_since = time.monotonic()
        try:
            return original(self, *args, **kwargs)
        finally:
            self._busy_since = None

    return timed


# ---- in the server's process ---------------------------------------------------------------------


@patch(
    "vllm.v1.engine.core_client",
    "AsyncMPClient.__init__(self, vllm_config, executor_class, log_stats, client_addresses, ...)",
)
def connect(original: Any) -> Any:
    """Remember the address from which the client sends requests, as its engines name it."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        import zmq

        original(self, *args, **kwargs)
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        given = (bound.arguments.get("client_addresses") or {}).get("input_address")
        self.requests_from = given or self.input_socket.getsockopt(zmq.LAST_ENDPOINT).decode()

    return __init__


@patch("vllm.v1.engine.async_llm", "AsyncLLM.check_health(self)")
def check(original: Any) -> Any:
    """``/health`` answers 503 where the engine does not."""
    from vllm.v1.engine.exceptions import EngineDeadError

    async def check_health(self: Any) -> None:
        await original(self)
        asker = _asker(self)
        said = await asker.hang() if asker is not None else ""
        if said != getattr(self, "_hang", ""):
            logger.error("cpu_backend: %s", said or "The engine answers again.")
        self._hang = said
        if said:
            raise EngineDeadError()

    return check_health


def _asker(client: Any) -> Asker | None:
    """The one that belongs to the host's AsyncLLM, made when it is first needed."""
    if not hasattr(client, "_asker"):
        core = client.engine_core
        address = getattr(core, "requests_from", None)
        engines = getattr(core, "engine_ranks_managed", [])
        client._asker = address and Asker(
            [name(address, i) for i in engines], envs.health_seconds()
        )
    asker: Asker | None = client._asker
    return asker

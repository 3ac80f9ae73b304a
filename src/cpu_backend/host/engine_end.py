"""How a running engine ended: the server says it, and fails with it.

What: the thread that waits for engines notes how the first one ended; requests, LLM, and the server
    when it exits, fail with that sentence.  An engine that was asked to stop has not died: requests
    that it did not answer fail, and connections whose client does not read are closed.  One of a
    process of multiprocessing stops with it.
Why: the host exits with 0 when its engine was killed, and logs an EngineDeadError with its
    traceback at most stops and for every request that waits.  A stopped server waits for ever for
    requests whose engine did not answer in time, LLM for a killed engine, and a process of
    multiprocessing that has not let go of its LLM at its end.
Since: 0.32
Until: it fails with its engine and logs no death at a stop.
"""

from __future__ import annotations

import functools
import logging
import queue
import sys
import weakref
from asyncio import CancelledError
from multiprocessing import connection, util
from typing import Any

from cpu_backend import envs
from cpu_backend.errors import EngineEndedError
from cpu_backend.host.seam import change, patch
from cpu_backend.host.stop_time import ENGINE_STOP_SECONDS
from cpu_backend.serving.engine_end import STOPPED, how_it_ended

POLL_SECONDS = 1.0  # the host's own monitor looks as often whether it should stop


@patch("vllm.v1.engine.utils", "CoreEngineProcManager.monitor_engine_liveness(self)")
def watch(original: Any) -> Any:
    """Kept as ``ended`` of the manager."""

    def monitor(self: Any) -> None:
        sentinels = {process.sentinel: process for process in self.processes}
        while sentinels and not self.manager_stopped.is_set():
            if died := connection.wait(list(sentinels), timeout=POLL_SECONDS):
                process = sentinels[died[0]]
                process.join(POLL_SECONDS)  # it closes its files a moment before it has ended
                if process.exitcode and not self.manager_stopped.is_set():
                    self.ended = how_it_ended(process.exitcode)
                    _tell_requests(self.ended)
                break
        original(self)

    return monitor


@patch("vllm.v1.engine.core_client", "MPClient.shutdown(self, ...)")
def wake(original: Any) -> Any:
    """The thread that feeds what LLM waits for ends without a word when the engine was killed."""
    from vllm.v1.engine.exceptions import EngineDeadError

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        waiting = getattr(self, "outputs_queue", None)
        if isinstance(waiting, queue.Queue):  # the server's is asyncio's, and is told
            waiting.put_nowait(EngineDeadError())

    return shutdown


@patch("vllm.v1.engine.core_client", "MPClient.__init__(self, ...)")
def stop_before_it_is_waited_for(original: Any) -> Any:
    """multiprocessing joins the children of a process that it has started itself, and runs nothing
    of what is registered for its end but this."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        util.Finalize(None, _shut_down, args=(weakref.ref(self),), exitpriority=0)

    return __init__


def _shut_down(client: weakref.ref[Any]) -> None:
    if (alive := client()) is not None:
        alive.shutdown()


def _tell_requests(said: str) -> None:
    """Requests that wait for the engine fail with the sentence."""
    from vllm.v1.engine.exceptions import EngineDeadError

    original = EngineDeadError.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.args = (said,)
        self.CLIENT_MESSAGE = said  # of hosts from 0.33 on, which answer with one of their own

    EngineDeadError.__init__ = init


@patch("vllm.entrypoints.launchers.launcher", "serve_http(app, ...)")
def serve(original: Any) -> Any:
    """A server whose engine has ended by itself fails; one that stops waits for no client."""

    async def serve_http(app: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("timeout_graceful_shutdown", ENGINE_STOP_SECONDS)
        client = app.state.engine_client  # gone when the server has shut down
        rest = await original(app, *args, **kwargs)
        if client is not None and client.errored and not getattr(client, "_was_stopped", False):
            await rest
            raise EngineEndedError(_how(client))
        return rest

    return serve_http


def _how(client: Any) -> str:
    manager = getattr(client.engine_core.resources, "engine_manager", None)
    return getattr(manager, "ended", "The engine ended: the log above says why.")


@patch("vllm.v1.engine.async_llm", "AsyncLLM.shutdown(self, ...)")
def stop(original: Any) -> Any:
    """Note that the server was asked to, and fail what has no answer.  Not while Python ends, when
    the host's __del__ would find its modules emptied."""
    from vllm.v1.engine.exceptions import EngineDeadError

    is_finalizing = sys.is_finalizing

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        self._was_stopped = True
        if is_finalizing():
            return
        handler = getattr(self, "output_handler", None)  # a task, which original cancels
        if handler is not None and not self.errored:
            _tell_requests(STOPPED)  # the host may be faster to tell them that it is dead
        original(self, *args, **kwargs)
        if handler is not None and (loop := handler.get_loop()).is_running():
            loop.call_soon_threadsafe(self.output_processor.propagate_error, EngineDeadError())

    return shutdown


@change("vllm.v1.engine.async_llm", "AsyncLLM")
def log_no_death(_: Any) -> None:
    """Tracebacks of it, and of requests that a server has given up to stop, say nothing that the
    server's last sentences do not."""
    for handler in logging.getLogger("vllm").handlers:
        handler.addFilter(_is_no_end)
    logging.getLogger("uvicorn.error").addFilter(_is_no_end)


def _is_no_end(record: logging.LogRecord) -> bool:
    from vllm.v1.engine.exceptions import EngineDeadError

    error = record.exc_info[1] if record.exc_info else None
    return envs.wants_traceback() or not isinstance(error, EngineDeadError | CancelledError)

"""How a running engine ended: asked to, which is nothing to speak of, or not, which the server says
in one sentence and by its exit code.
"""

from __future__ import annotations

import functools
import logging
import signal
from multiprocessing import connection
from typing import Any

from cpu_backend import envs
from cpu_backend.errors import EngineEndedError

POLL_SECONDS = 1.0  # the host's own monitor looks as often whether it should stop

MEANINGS = {
    signal.SIGKILL: "often because memory ran out: lower VLLM_CPU_KVCACHE_SPACE or "
    "--max-model-len, or choose a smaller model or quantization",
    signal.SIGTERM: "which somebody sent to it and not to the server",
}
FAULT = "a fault in native code, which is worth a report"


def how_it_ended(code: int) -> str:
    """The sentence for an engine process with the exit code ``code``, negative for a signal."""
    if code >= 0:
        return f"The engine process ended with exit code {code}: the log above says why."
    try:
        number = signal.Signals(-code)
    except ValueError:
        return f"The engine process was killed by signal {-code}."
    return (
        f"The engine process was killed by signal {-code} ({number.name}), "
        f"{MEANINGS.get(number, FAULT)}."
    )


def watch(module: Any) -> None:
    """vllm.v1.engine.utils: the thread that waits for engines to end notes how the first one did,
    as ``ended`` of its manager."""
    manager = module.CoreEngineProcManager
    original = manager.monitor_engine_liveness

    def monitor_engine_liveness(self: Any) -> None:
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

    manager.monitor_engine_liveness = monitor_engine_liveness


def _tell_requests(said: str) -> None:
    """Requests that wait for the engine fail with the sentence."""
    from vllm.v1.engine.exceptions import EngineDeadError

    original = EngineDeadError.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.args = (said,)

    EngineDeadError.__init__ = init


def fail_with_engine(module: Any) -> None:
    """vllm.entrypoints.launchers.launcher: a server whose engine has ended by itself fails."""
    original = module.serve_http

    async def serve_http(app: Any, *args: Any, **kwargs: Any) -> Any:
        client = app.state.engine_client  # gone when the server has shut down
        rest = await original(app, *args, **kwargs)
        if client is not None and client.errored and not getattr(client, "_was_stopped", False):
            await rest
            raise EngineEndedError(_how(client))
        return rest

    module.serve_http = serve_http


def _how(client: Any) -> str:
    manager = getattr(client.engine_core.resources, "engine_manager", None)
    return getattr(manager, "ended", "The engine ended: the log above says why.")


def note_orderly_stop(module: Any) -> None:
    """vllm.v1.engine.async_llm: an engine that was asked to stop has not died.

    The host logs an EngineDeadError with its traceback for every stop, and for each request that
    waits when the engine dies.  They say nothing that the server's last sentence does not.
    """
    original = module.AsyncLLM.shutdown

    def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        self._was_stopped = True
        original(self, *args, **kwargs)

    module.AsyncLLM.shutdown = shutdown
    for handler in logging.getLogger("vllm").handlers:
        handler.addFilter(_is_no_dead_engine)


def _is_no_dead_engine(record: logging.LogRecord) -> bool:
    from vllm.v1.engine.exceptions import EngineDeadError

    error = record.exc_info[1] if record.exc_info else None
    return envs.wants_traceback() or not isinstance(error, EngineDeadError)

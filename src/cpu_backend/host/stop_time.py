"""Time for the engine to answer its open requests between SIGTERM and SIGKILL.

What: ``get_engine_process_shutdown_timeout`` is at least ENGINE_STOP_SECONDS.
Why: the host kills the engine in the same instant; a stream whose end was not yet sent keeps the
    server from exiting until the client leaves.
Since: 0.32
Until: the host waits for its engine.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch

ENGINE_STOP_SECONDS = 5.0


@patch("vllm.v1.engine.utils", "get_engine_process_shutdown_timeout")
def at_least(original: Any) -> Any:
    """Whatever the user asked for beyond that."""

    def timeout(*args: Any, **kwargs: Any) -> float:
        return max(original(*args, **kwargs) or 0.0, ENGINE_STOP_SECONDS)

    return timeout

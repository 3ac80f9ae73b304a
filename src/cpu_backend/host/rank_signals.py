"""A rank ends when its engine says so, not at Ctrl-C.

What: ``worker_main`` runs with SIGINT blocked.
Why: a terminal sends Ctrl-C to every process.  A rank that ends at once leaves its engine waiting
    for the step it was in, and the others for its part of it, until the server kills them all:
    requests get no answer.  The engine finishes the step, answers, and then ends its ranks.
Since: 0.32
Until: the host's ranks leave SIGINT to their engine.
"""

from __future__ import annotations

import signal
from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.v1.executor.multiproc_executor", "WorkerProc.worker_main(*args, ...)")
def leave_to_engine(original: Any) -> Any:
    """Threads that the rank starts inherit it."""

    def worker_main(*args: Any, **kwargs: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return original(*args, **kwargs)

    return worker_main

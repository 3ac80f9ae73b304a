"""A process of the engine ends when the one that started it has ended.

What: a thread of ``run_engine_core`` and ``run_coordinator`` watches the parent.
Why: a killed server leaves its engines behind; the host's signal handlers cover orderly ends only.
Since: 0.32
Until: they watch it themselves.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.host.stop_time import ENGINE_STOP_SECONDS

WATCH_SECONDS = 1.0


@patch("vllm.v1.engine.core", "EngineCoreProc.run_engine_core(*args, ...)")
def run_engine(original: Any) -> Any:
    """The engine."""
    return ends_with_parent(original)


@patch("vllm.v1.engine.coordinator", "DPCoordinatorProc.run_coordinator(engine_count, ...)")
def run_coordinator(original: Any) -> Any:
    """The process between data-parallel engines."""
    return ends_with_parent(original)


def ends_with_parent(original: Any) -> Any:
    """``original``, in a process that ends when its parent has."""

    def run(*args: Any, **kwargs: Any) -> Any:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()
        return original(*args, **kwargs)

    return run


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ENGINE_STOP_SECONDS)
    os._exit(1)  # whatever it still waits for will not come

"""Engines and ranks are forked from a process whose OpenMP has no idle threads.

What: ``launch_core_engines`` and ``MultiprocExecutor._init_executor`` end them first; they come
    back when there is work.
Why: a program or notebook that has used torch has such threads, a process forked from it has not,
    and GNU's OpenMP would wait for them for ever.  The host spawns where CUDA was used, not here.
Since: 0.32
Until: never: engines are forked for the sake of their start (process.py).
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from cpu_backend.host.seam import patch

PAUSE_SOFT = 1  # of omp_pause_resource_t, OpenMP 5.0


@patch("vllm.v1.engine.utils", "launch_core_engines(vllm_config, ...)")
def before_engines(original: Any) -> Any:
    """Of the thread that forks, whose threads alone a fork would look for."""
    return _after_ending_them(original)


@patch("vllm.v1.executor.multiproc_executor", "MultiprocExecutor._init_executor(self)")
def before_ranks(original: Any) -> Any:
    """Where the engine computes in the program's own process, and ranks do not."""
    return _after_ending_them(original)


def _after_ending_them(original: Any) -> Any:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _end()
        return original(*args, **kwargs)

    return wrapped


def _end() -> None:
    import torch

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libtorch_cpu.so"))
        library.omp_pause_resource_all(PAUSE_SOFT)
    except (OSError, AttributeError):  # no GNU OpenMP: others see to forks themselves
        return

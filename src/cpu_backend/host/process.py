"""What must stand in a process before the host imports its Triton layer.

What: the V1 runner (VLLM_USE_V2_MODEL_RUNNER=0), engines that are forked, and no empty
    CUDA_VISIBLE_DEVICES; memory and signals of the server kept apart from those of its forks; what
    was frozen thawed at the end, but a server's end without a search for garbage; none while it
    imports.
Why: the V2 runner is written in Triton.  The host spawns engines for the sake of CUDA, so each
    imports everything again, half of the time to the first token.  An empty CUDA_VISIBLE_DEVICES
    makes the host believe that Triton works.  The host's gc.freeze() leaves Triton's types alive,
    which are then listed as leaks after Ctrl-C.  Imports make no garbage worth looking for, and
    the search goes over all that they have made, several times after Ctrl-C.
Since: 0.32
Until: the V2 runner computes without Triton; a platform chooses the start method; the host asks
    the driver for GPUs.
"""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import os
import signal
import sys
from pathlib import Path

from cpu_backend import envs
from cpu_backend.serving import sentences


def prepare() -> None:
    """Once per process; what the user has set stays, except for an empty CUDA_VISIBLE_DEVICES."""
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # Nothing here starts threads before the fork (see platform.py).
    os.environ.setdefault(envs.START_METHOD.name, envs.START_METHOD.default)
    # What the server has imported outlives the engine, which collects garbage several times while
    # it starts: without this each time visits, and so copies, all that was shared.
    os.register_at_fork(after_in_child=gc.freeze)
    # The server's event loop hears of signals by a file that a forked engine would write to, too:
    # the end of a rank would look to the server as if it had been asked to stop.
    os.register_at_fork(after_in_child=functools.partial(signal.set_wakeup_fd, -1))
    is_server = serves()
    atexit.register(_end_at_once if is_server else gc.unfreeze)
    if is_server and os.environ[envs.START_METHOD.name] == "fork":
        gc.disable()
        os.register_at_fork(after_in_child=gc.enable, after_in_parent=_collect_from_here_on)
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]
    sentences.print_without_traceback()


def _collect_from_here_on() -> None:
    """Of what has been imported nothing becomes garbage: without this the first searches for it,
    and the host's own before it serves, visit it all."""
    gc.freeze()
    gc.enable()


def serves() -> bool:
    """Whether this process is ``vllm serve``'s first, which ends with its server."""
    return (
        sys.argv[1:2] == ["serve"]
        and Path(sys.argv[0]).name == "vllm"
        and multiprocessing.parent_process() is None
    )


def _end_at_once() -> None:
    """Leave what is left of a server to the system: the last of its handlers, so that nothing but
    lists of leaks is written after it."""
    gc.freeze()
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

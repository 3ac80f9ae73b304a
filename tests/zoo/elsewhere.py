"""Engines of the zoo: forked from this process, or from that of another Python.

    ZOO_PYTHON=build/aarch64/root/usr/bin/python python -m tests.zoo NAMES

makes every model, and what it is compared with, in this Python, and every engine in the one that is
named, which may be an emulated one with another CPU.  That one needs the host and this backend
installed, imports them once, and gets tasks and answers through a socket.  QEMU_CPU and
CPU_BACKEND_ISA count there; ZOO_PYTHONPATH names folders where it finds more packages.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.zoo import run

VARIABLE = "ZOO_PYTHON"
PROJECT = Path(__file__).resolve().parents[2]
PASSED_ON = ("XDG_CACHE_HOME",)  # where a task says that files lie

_connection: Connection | None = None


def run_engine(task: Callable[..., Any], *args: Any, seconds: float = run.SECONDS) -> Any:
    """``task(*args)``, which makes an engine and answers with what can be pickled.

    Raises Failed with its exception or the signal that ended it.
    """
    if _connection is None:
        return run.forked(task, *args, seconds=seconds)
    number = uuid.uuid4()
    variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    _connection.send_bytes(pickle.dumps((number, task, args, seconds, variables)))
    answered, result = None, None
    while answered != number:  # a task that was given up may have answered since
        answered, result = pickle.loads(_connection.recv_bytes())
    if isinstance(result, run.Failed):
        raise result
    return result


def start() -> None:
    """Start the other Python if one is named; it ends with this process and its children."""
    global _connection
    python = os.environ.get(VARIABLE)
    if not python:
        return
    ours, theirs = Pipe()
    # This Python's packages are for this CPU.
    own = ("LD_LIBRARY_PATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    folders = (str(PROJECT), os.environ.get("ZOO_PYTHONPATH"))
    subprocess.Popen(
        [python, "-m", "tests.zoo.elsewhere", str(theirs.fileno())],
        cwd=PROJECT,
        env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    _connection = ours


def main() -> None:
    """Serve until the other end is closed."""
    # With a process's first thread qemu translates all anew: here there is nothing yet.
    threading.Thread(target=int).start()
    asked = Connection(int(sys.argv[1]))
    run.prepare(engines=True)
    with contextlib.suppress(EOFError):
        while True:
            number, task, args, seconds, variables = pickle.loads(asked.recv_bytes())
            os.environ.update(variables)
            try:
                result = run.forked(task, *args, seconds=seconds)
            except run.Failed as failed:
                result = failed
            asked.send_bytes(pickle.dumps((number, result)))


if __name__ == "__main__":
    main()

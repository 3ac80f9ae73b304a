"""Processes that a killed server would leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PARENT = """
import multiprocessing, sys, time
from cpu_backend.host import orphans, seam

class Engine:
    @staticmethod
    def run(seconds):
        print(multiprocessing.current_process().pid, flush=True)
        time.sleep(seconds)

seam.replace(Engine, "run", orphans.ends_with_parent)
process = multiprocessing.get_context("fork").Process(target=Engine.run, args=(600,))
process.start()
process.join()
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_engine_ends_when_its_server_was_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    engine = int(parent.stdout.readline())
    time.sleep(1.5)
    assert is_alive(engine), "it must not end while its server lives"
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while is_alive(engine) and time.monotonic() < deadline:
        time.sleep(0.1)
    survived = is_alive(engine)
    if survived:
        os.kill(engine, signal.SIGKILL)
    assert not survived

"""One runner as a child process: requests and replies with time limits, and its memory.

The runner gets a session of its own, so that every process it starts can be counted and ended with
it, whatever becomes of the runner.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.compare.session import Session

# A sample takes milliseconds of a core that the peer wants; the kernel notes peaks in between.
SAMPLE_S = 1.0
STOP_S = 20

# What the user's shell has set for another program must not reach the peers.
FOREIGN_PREFIXES = ("VLLM_", "OMP_", "KMP_", "GOMP_", "MKL_", "TORCH", "CPU_BACKEND_", "GGML_")
FOREIGN_NAMES = ("LD_PRELOAD", "PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME", "MALLOC_CONF")


class RunnerError(Exception):
    """One sentence: why a runner did not do what it was asked; it goes on listening."""


class RunnerEndedError(RunnerError):
    """The runner is gone or does not answer; nothing more can be asked of it."""


def clean_environ(added: dict[str, str], keep: tuple[str, ...] = ()) -> dict[str, str]:
    """The environment of a peer: the user's without what tunes engines, and what is added.

    ``CPU_BACKEND_`` variables of the shell go too: a variant of this project is a peer of its own.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in keep or not (name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES)
    }
    return {**inherited, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **added}


class Runner:
    """A started runner; use it as a context manager. Messages of the peer go to ``log``.

    ``peak_rss_bytes`` sums the resident peaks of its processes; pages that processes share count
    once for each.
    """

    def __init__(
        self, python: Path, script: Path, environ: dict[str, str], log: Path, timeout_s: float
    ) -> None:
        self.log = log
        self.timeout_s = timeout_s
        self.peak_rss_bytes = 0
        self.started = time.perf_counter()
        with log.open("ab") as sink:
            # Not in the caller's folder: `python -m` of a runner would import this project's
            # sources from there, which have no library in them.
            self._process = subprocess.Popen(
                [str(python.absolute()), str(script.absolute())],
                cwd=log.absolute().parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environ,
                start_new_session=True,
            )
        self.session = Session(self._process.pid)
        self._unread = b""
        self._is_given_up = False
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._sample_memory, daemon=True)
        self._sampler.start()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the runner: by the end of its input where all went well, else by firmer signals."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._stopping.set()
        self._sampler.join()
        if kind is None and not self._is_given_up:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.session.processes():
                break
            self._signal(number)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _signal(self, number: int) -> None:
        deadline = time.monotonic() + STOP_S
        while (pids := self.session.processes()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            self._process.poll()
            time.sleep(0.2)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request; RunnerError where it is an error, or none comes in time.

        Added to it is ``other_cores``: how many cores other programs kept busy meanwhile.
        """
        assert self._process.stdin is not None
        before = self.session.cpu_time()
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        reply: dict[str, Any] = json.loads(self._read_line())
        other_cores = self.session.cpu_time().other_cores_since(before)
        if "error" in reply:
            raise RunnerError(reply["error"])
        return {**reply, "other_cores": other_cores}

    def _read_line(self) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + self.timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if time.monotonic() >= deadline:
                    self._is_given_up = True
                    raise RunnerEndedError(f"took over {self.timeout_s:.0f} s")
                # A child that outlives the runner holds the pipe open: its end is polled for.
                if selector.select(0.5):
                    data = os.read(self._process.stdout.fileno(), 1 << 16)
                    self._unread += data
                    if not data:
                        raise self._ended()
                elif self._process.poll() is not None:
                    raise self._ended()
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def _ended(self) -> RunnerEndedError:
        status = self._process.wait()
        lines = self.log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return RunnerEndedError(f"ended with status {status}: {last[:300]}")

    def _sample_memory(self) -> None:
        while not self._stopping.wait(SAMPLE_S):
            resident = self.session.memory_bytes("status", "VmHWM:")
            self.peak_rss_bytes = max(self.peak_rss_bytes, resident)

    def memory_bytes(self) -> dict[str, int]:
        """Memory until now; for when nothing is timed, as walking page tables takes a while."""
        shared = self.session.memory_bytes("smaps_rollup", "Pss:")
        return {"peak_rss": self.peak_rss_bytes, "pss": shared}

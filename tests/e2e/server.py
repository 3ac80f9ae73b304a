"""A real ``vllm serve`` on a free port, for as long as a ``with`` block lasts."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

import openai
from openai.types import Completion

from tests.e2e.engine import NEW_TOKENS, check_replayed

# The command of this Python's environment, or of one that this one borrows packages from.
_PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
VLLM = str(shutil.which("vllm", path=_PLACES))
START_SECONDS = 300  # generous: a wedged server must fail the test, a slow machine must not


def free_port() -> int:
    """Below those that systems give to whoever asks for any, and another test might be given before
    it is taken."""
    while True:
        port = secrets.choice(range(20000, 32000))
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **extra}


class Server:
    """``vllm serve MODEL --device cpu ...``; ``log()`` is all it has printed so far."""

    def __init__(self, model: str, log: Path, *arguments: str) -> None:
        self.model = model
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ: dict[str, str] = {}
        self._log = log
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        self.folder: Path | None = None  # to start it in, unless in the current one
        self.program = [sys.executable, VLLM]
        self.start_seconds = START_SECONDS
        self._arguments = ["serve", model, "--device", "cpu", *address, *arguments]

    def __enter__(self) -> Server:
        with self._log.open("w") as out:
            self.process = subprocess.Popen(
                [*self.program, *self._arguments],
                cwd=self.folder,
                stdout=out,
                stderr=out,
                env=environment(**self.environ),
                start_new_session=True,
            )
        deadline = time.monotonic() + self.start_seconds
        while not self._healthy():
            assert self.process.poll() is None, self.log()[-4000:]
            assert time.monotonic() < deadline, self.log()[-4000:]
            time.sleep(0.2)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise
        if error is None:
            check_replayed(self.log())

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return reply.status == 200
        except OSError:
            return False

    def tokens(self, prompt: list[int]) -> list[int]:
        """Greedy tokens, ``NEW_TOKENS`` of them."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        reply = client.completions.create(
            model=self.model,
            prompt=prompt,
            temperature=0,
            max_tokens=NEW_TOKENS,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        result: list[int] = reply.choices[0].token_ids  # type: ignore[attr-defined]
        return result

    def begin_to_generate(self) -> openai.Stream[Completion]:
        """A long answer, of which the first token has come."""
        client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model=self.model,
            prompt="Tell me a story",
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        return stream

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def metric(self, name: str) -> float:
        """The sum of a Prometheus metric over its labels."""
        return sum(self.metrics(name).values())

    def metrics(self, name: str, label: str = "") -> dict[str, float]:
        """A Prometheus metric summed per value of ``label``."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        samples = re.findall(rf"^{re.escape(name)}(?:{{([^}}]*)}})? (\S+)$", text, re.M)
        assert samples, f"no metric {name}"
        sums: dict[str, float] = {}
        for labels, value in samples:
            found = re.search(rf'\b{label}="([^"]*)"', labels) if label else None
            key = found.group(1) if found else ""
            sums[key] = sums.get(key, 0.0) + float(value)
        return sums

    def group(self) -> list[int]:
        """Processes of the server's session that are alive."""
        alive = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                alive.append(int(entry.parent.name))
        return alive

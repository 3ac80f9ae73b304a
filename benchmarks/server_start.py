"""How long servers take to begin: ``python -m benchmarks.server_start [--rounds 5]``.

``--beside FOLDER`` takes turns with the package in FOLDER (``pip install --target FOLDER .``, of
another version), ``--only text`` leaves the others out.

Three kinds, each started anew in turns: the demo model as a text model, the same as one that
embeds, and a BERT of the size of bge-small with random weights.  Seconds from the process begun to
the first token or vector over HTTP, and the CPU time of all of its processes until it has ended,
which neighbours disturb least; medians and ranges of the rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.compare.process import clean_environ
from benchmarks.encoders import SHAPES, make_checkpoint
from benchmarks.turns import summary
from cpu_backend.demo_model import default_dir, make_demo_model

TIMEOUT_S = 300
STEP_S = 0.02


@dataclass
class Kind:
    """A server, the path and the body of its first request, and what was measured."""

    name: str
    model: Path
    options: list[str]
    path: str
    body: dict[str, Any]
    package: Path | None = None  # a folder that goes before all others
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def measure(kind: Kind, log: Path) -> tuple[float, float]:
    """Seconds to the first answer, and of CPU time from its start to its end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["vllm", "serve", str(kind.model), "--device", "cpu", "--dtype", "bfloat16"]
    command += ["--served-model-name", "m", "--port", str(port), *kind.options]
    places = f"{Path(sys.executable).parent}:/usr/bin"
    program = str(shutil.which(command[0], path=places))
    environ = clean_environ({}, keep=("PYTHONPATH",))
    if kind.package is not None:
        environ["PYTHONPATH"] = str(kind.package)
    before = _children()
    begun = time.perf_counter()
    with log.open("ab") as sink:
        server = subprocess.Popen(
            [sys.executable, program, *command[1:]],
            stdout=sink,
            stderr=sink,
            env=environ,
        )
        try:
            _first_answer(server, f"http://127.0.0.1:{port}{kind.path}", kind.body, log)
            seconds = time.perf_counter() - begun
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(TIMEOUT_S)
    return seconds, _children() - before


def _children() -> float:
    """CPU seconds of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _first_answer(
    server: subprocess.Popen[bytes], url: str, body: dict[str, Any], log: Path
) -> None:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                reply.read()
            return
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{url}: {error.read().decode()[:300]}") from error
        except OSError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no answer:\n{log.read_text()[-2000:]}") from None
        time.sleep(STEP_S)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.server_start",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="NAME", help="kinds whose name has this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bert, demo = folder / "bert", make_demo_model(default_dir())
        make_checkpoint(SHAPES["bge-small"], bert)
        first = {"model": "m", "prompt": "Once", "max_tokens": 1}
        vector = {"model": "m", "input": [7, 8, 9]}
        pooling = ["--runner", "pooling"]
        kinds = [
            Kind("text, demo model", demo, [], "/v1/completions", first),
            Kind("vectors, demo model", demo, pooling, "/v1/embeddings", vector),
            Kind("vectors, bge-small", bert, pooling, "/v1/embeddings", vector),
        ]
        kinds = [kind for kind in kinds if options.only in kind.name]
        if options.beside is not None:
            others = [replace(k, name=f"{k.name}, beside", wall=[], cpu=[]) for k in kinds]
            for other in others:
                other.package = options.beside.absolute()
            kinds = [one for pair in zip(kinds, others, strict=True) for one in pair]
        for turn in range(-1, options.rounds):  # the first one fills caches
            for kind in kinds:
                wall, cpu = measure(kind, folder / "log")
                if turn >= 0:
                    kind.wall.append(wall)
                    kind.cpu.append(cpu)
        for kind in kinds:
            print(
                f"{kind.name:28} {summary(kind.wall, '.1f')} s, "
                f"{summary(kind.cpu, '.1f')} s of CPU time",
                flush=True,
            )


if __name__ == "__main__":
    main()

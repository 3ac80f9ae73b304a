# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Contributors to vllm-cpu-backend
"""Starts a server on the CPU, asks it one question, and shows the answer and how fast it came.

    python examples/demo.py [--model MODEL] [-- further options of vllm serve]

Without ``--model`` it serves the small demo model, which it makes on first use.
Exits with 0 only if the server ran, the answer was right and the server stopped cleanly.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import httpx
import openai

from cpu_backend.demo_model import DemoModelError, default_dir, make_demo_model
from cpu_backend.demo_model.__main__ import os_error_sentence

QUESTION = "Which city is the capital of France, and what can I see there?"
EXPECTED = "Paris"
LOG_LINES = 30
# Seconds the server gets to stop after each signal.
STOP_SECONDS = ((signal.SIGINT, 30), (signal.SIGTERM, 10), (signal.SIGKILL, 10))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="folder or name of a chat model (default: the demo model)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds to wait for the server")
    parser.add_argument("serve_options", nargs="*", help="after --, further options of vllm serve")
    options = parser.parse_args()
    # A terminated demo must stop the server like an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    try:
        model = options.model or demo_model()
        with tempfile.TemporaryDirectory(prefix="cpu_backend_demo_") as folder:
            log = Path(folder) / "server.log"
            port = free_port()
            with running_server(model, port, options.serve_options, log) as server:
                wait_until_healthy(server, port, log, options.timeout)
                answer = ask(port, log)
                show_plugin_lines(log)
    except (DemoModelError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    if EXPECTED not in answer:
        print(f"error: the answer does not name {EXPECTED}", file=sys.stderr)
        return 1
    return 0


def demo_model() -> str:
    """The folder of the demo model, made on first use.  Raises DemoModelError."""
    try:
        return str(make_demo_model(default_dir()))
    except OSError as error:
        raise DemoModelError(os_error_sentence(error)) from error


@contextlib.contextmanager
def running_server(
    model: str, port: int, options: list[str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``vllm serve`` in a process group of its own, and stop the whole group at the end."""
    vllm = shutil.which(
        "vllm", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if vllm is None:
        fail("the command 'vllm' was not found: run 'make setup', or pip install vllm")
    command = [vllm, "serve", model, "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    # The model is on this disk; without this the host asks the model hub about it.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    print("$", "vllm", *command[1:], *options, flush=True)
    with log.open("wb") as sink:
        server = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    try:
        yield server
    finally:
        stop(server)


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask the server's process group to stop, more firmly each time, until none of it is left."""
    for number, seconds in STOP_SECONDS:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        while time.monotonic() < deadline:
            server.poll()  # reaps the leader, so that an empty group disappears
            try:
                os.killpg(server.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)


def wait_until_healthy(
    server: subprocess.Popen[bytes], port: int, log: Path, timeout: float
) -> None:
    start = time.monotonic()
    while server.poll() is None:
        seconds = time.monotonic() - start
        progress(f"waiting for the server: {seconds:.0f} s")
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code == 200:
                progress(f"server ready after {time.monotonic() - start:.1f} s\n")
                return
        except httpx.TransportError:
            pass  # it does not listen yet
        if seconds > timeout:
            fail(f"the server was not ready after {timeout:.0f} s: raise --timeout", log)
        time.sleep(0.25)
    fail(f"the server ended with exit status {server.returncode}", log)


def ask(port: int, log: Path) -> str:
    """Stream the answer to the terminal, print its speed, and return it."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    print(f"\n> {QUESTION}")
    pieces: list[str] = []
    arrived: list[tuple[float, int]] = []  # seconds, tokens so far; an event may carry several
    try:
        model = client.models.list().data[0].id
        start = time.perf_counter()
        stream = client.chat.completions.create(  # type: ignore[call-overload]  # vLLM's option
            model=model,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
        for chunk in stream:
            if chunk.usage and chunk.choices and chunk.choices[0].delta.content:
                arrived.append((time.perf_counter(), chunk.usage.completion_tokens))
                pieces.append(chunk.choices[0].delta.content)
                print(pieces[-1], end="", flush=True)
    except (openai.OpenAIError, httpx.HTTPError) as error:
        fail(f"the request failed: {error}", log)
    print("\n")
    if not "".join(pieces).strip():
        fail("the answer is empty", log)
    (first, _), (_, tokens) = arrived[0], arrived[-1]
    print(f"time to first token: {(first - start) * 1e3:.0f} ms")
    if seconds := decode_seconds(port):
        print(f"after it: {(tokens - 1) / seconds:.1f} tokens/s ({tokens} tokens)")
    return "".join(pieces)


def decode_seconds(port: int) -> float:
    """From the first token to the last of all requests by the engine's clock: on a busy machine
    tokens come here in one go, long after they were made."""
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    name = "vllm:request_decode_time_seconds_sum"
    return sum(float(value) for value in re.findall(rf"^{name}\S* (\S+)$", metrics, re.MULTILINE))


def show_plugin_lines(log: Path) -> None:
    """Print what the plugin told about itself while the server started."""
    # "cpu_backend:" opens the plugin's own lines; without the colon, paths in the cache match too.
    lines = re.findall(r"cpu_backend: .*", log.read_text(errors="replace"))
    print("\nfrom the server's log:" if lines else "\nthe server's log has no line of cpu_backend")
    for line in dict.fromkeys(lines):
        print(" ", line)


def fail(reason: str, log: Path | None = None) -> NoReturn:
    """End the demo with the last lines of the server's log and the reason."""
    print(file=sys.stderr)
    if log is not None:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        print(*lines, sep="\n", file=sys.stderr)
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(1)


def progress(text: str) -> None:
    """Rewrite one line on a terminal; elsewhere print only the last text of the line."""
    if sys.stdout.isatty():
        print(f"\r{text:<40}", end="", flush=True)
    elif text.endswith("\n"):
        print(text, end="", flush=True)


def free_port() -> int:
    """Below those that the system gives to connections, one of which might have it before the
    server does."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    sys.exit(main())

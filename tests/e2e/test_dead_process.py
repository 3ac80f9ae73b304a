"""kill -9 of every kind of process: the server ends in seconds, says why, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest

from cpu_backend.serving.engine_end import STOPPED
from tests.conftest import mostly_slow
from tests.e2e.even_heads import write_even_heads
from tests.e2e.server import Server

QUICK = ("Worker_TP1", "API server")  # in every run
SECONDS = 30  # for a busy machine; alone it takes about five


@pytest.fixture(scope="module")
def even_model(model_path: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("even") / "model"
    write_even_heads(Path(model_path), target)
    return str(target)


def process(server: Server, kind: str) -> int:
    """The process of the server's session whose log prefix or role is ``kind``."""
    if kind == "API server":
        return server.process.pid
    [pid] = {int(pid) for pid in re.findall(rf"\({kind} pid=(\d+)\)", server.log())}
    return pid


def named_shared_memory(pids: list[int]) -> list[str]:
    """Shared memory of the processes that still has a name, so could outlive them."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return [path for path in set(re.findall(r"/dev/shm/\S+", maps)) if Path(path).exists()]


@pytest.mark.parametrize(
    "kind", mostly_slow(["Worker_TP0", "Worker_TP1", "EngineCore", "API server"], *QUICK)
)
@pytest.mark.parametrize(
    "busy", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["while generating", "idle"]
)
def test_killed_process_ends_the_server_cleanly(
    kind: str, busy: bool, even_model: str, tmp_path: Path
) -> None:
    arguments = ["-tp", "2", "--max-model-len", "2048"]
    with Server(even_model, tmp_path / "log", *arguments) as server:
        assert named_shared_memory(server.group()) == []
        if busy:
            threading.Thread(target=generate, args=(server,), daemon=True).start()
            while server.metric("vllm:generation_tokens_total") < 5:
                time.sleep(0.05)
        start = time.monotonic()
        os.kill(process(server, kind), signal.SIGKILL)
        while server.group() and time.monotonic() - start < SECONDS:
            time.sleep(0.1)
        assert server.group() == [], server.log()[-4000:]
    if kind.startswith("Worker"):
        assert f"Worker proc VllmWorker-{kind[-1]} died unexpectedly" in server.log()
    if kind == "EngineCore":
        assert "cpu_backend: The engine process was killed by signal 9 (SIGKILL)" in server.log()
        assert "Traceback" not in server.log()
    if kind != "API server":
        assert server.process.wait(10) == 1


KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from vllm import LLM, SamplingParams

def kill_soon():
    time.sleep(2)
    [engine] = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    os.kill(int(engine), signal.SIGKILL)

llm = LLM(sys.argv[1], device="cpu", max_model_len=2048)
threading.Thread(target=kill_soon).start()
sampling = SamplingParams(max_tokens=1900, ignore_eos=True)
llm.generate([{"prompt_token_ids": [504] * 8}] * 64, sampling)
"""


def test_killed_engine_ends_a_program_that_waits_for_it(model_path: str) -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", KILLED, model_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "The engine process was killed by signal 9 (SIGKILL)" in done.stderr[-500:], done.stderr


def test_server_that_stops_waits_for_no_one(model_path: str, tmp_path: Path) -> None:
    # The step in which the engine is takes for ever, and a client never ends its request.
    with Server(model_path, tmp_path / "log", "--max-model-len", "2048") as server:
        stream = server.begin_to_generate()
        half = b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{"
        with socket.create_connection(("127.0.0.1", server.port)) as unfinished:
            unfinished.sendall(half)
            os.kill(process(server, "EngineCore"), signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match=re.escape(STOPPED)):
                list(stream)
            assert server.process.wait(SECONDS) == 0
        assert server.group() == []
        assert "Traceback" not in server.log()


def generate(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    with contextlib.suppress(openai.OpenAIError):  # the server dies while it answers
        for _ in client.completions.create(
            model=server.model,
            prompt="Tell me a story",
            max_tokens=1900,
            stream=True,
            extra_body={"ignore_eos": True},
        ):
            pass

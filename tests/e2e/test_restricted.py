"""A container that forbids binding threads and memory: one warning, and the right answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e import engine
from tests.e2e.server import environment

HERE = Path(__file__).parent

ANSWERS = """
import json
from cpu_backend import ops
ops.load()
print(json.dumps([ops.bind_threads((0,)), ops.bind_memory((0,))]))
"""


def test_refused_system_calls_are_answers_and_not_errors() -> None:
    command = [sys.executable, str(HERE / "restricted.py"), sys.executable, "-c", ANSWERS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    bound, memory = json.loads(done.stdout.splitlines()[-1])
    assert bound is False
    assert memory.startswith("not possible: ")


def test_engine_runs_where_nothing_can_be_bound(
    model_path: str, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    job = {
        "engine": {"model": model_path, "dtype": "float32", "max_model_len": 512},
        "batches": [[prompts[3]]],
        "sampling": {"max_tokens": engine.NEW_TOKENS},
    }
    command = [
        sys.executable,
        str(HERE / "restricted.py"),
        sys.executable,
        str(HERE / "engine.py"),
    ]
    env = environment(VLLM_LOGGING_LEVEL="WARNING")
    done = subprocess.run(
        command, input=json.dumps(job), capture_output=True, text=True, env=env, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith(engine.MARK)]
    assert json.loads(line.removeprefix(engine.MARK))[0][0]["tokens"] == expected[3]
    warnings = [w for w in (done.stdout + done.stderr).splitlines() if "Threads stay unbound" in w]
    assert len(warnings) == 1

"""A container that forbids binding threads and memory: one warning, and the right answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e import engine

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
    [[answer]], log = engine.run_by([sys.executable, str(HERE / "restricted.py")], job, Path.cwd())
    assert answer["tokens"] == expected[3]
    assert log.count("Threads stay unbound") == 1

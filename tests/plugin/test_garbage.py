"""When a process collects garbage: a server not before it has forked its engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import gc, json, os, sys
sys.argv = sys.argv[1:]
from cpu_backend.host import process
process.prepare()
prepared = gc.isenabled()
child = os.fork()
if child == 0:
    os._exit(gc.isenabled())
_, status = os.waitpid(child, 0)
frozen = gc.get_freeze_count() > 0
print(json.dumps([prepared, bool(os.waitstatus_to_exitcode(status)), gc.isenabled(), frozen]))
"""


def collects(*argv: str, **environ: str) -> list[bool]:
    """After ``prepare``, in a forked child, and in the parent of one; then whether the parent
    leaves what it has imported alone."""
    command = [sys.executable, "-c", SCRIPT, *argv]
    found = subprocess.run(
        command, env={**os.environ, **environ}, check=True, capture_output=True, text=True
    )
    collects: list[bool] = json.loads(found.stdout)
    return collects


def test_a_server_begins_when_it_has_forked() -> None:
    assert collects("/somewhere/bin/vllm", "serve", "model") == [False, True, True, True]


@pytest.mark.parametrize(
    "argv", [["/somewhere/bin/vllm", "bench", "serve"], ["serve.py", "serve"], ["vllm"], []]
)
def test_other_programs_always_do(argv: list[str]) -> None:
    assert collects(*argv) == [True, True, True, False]


def test_a_server_that_forks_nothing_always_does() -> None:
    environ = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    assert collects("vllm", "serve", "model", **environ) == [True, True, True, False]

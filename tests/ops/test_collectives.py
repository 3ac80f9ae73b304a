"""The host's collectives, called by real processes as ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.ops.collective_ranks import cases

SCRIPT = Path(__file__).parent / "collective_ranks.py"
GROUPS = [(2, 1), (2, 3), (3, 2)]  # ranks, threads each; also more than there are cores


def start(name: str, size: int, threads: int, script: list[str]) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, *script, name, str(size), str(rank), str(threads)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


@pytest.fixture(scope="module", params=GROUPS, ids=lambda p: f"{p[0]} ranks {p[1]} threads")
def outcomes(request: pytest.FixtureRequest) -> list[dict[str, str]]:
    """What every rank says of every case."""
    size, threads = request.param
    ranks = start(uuid.uuid4().hex, size, threads, [str(SCRIPT)])
    result = []
    for rank in ranks:
        out, err = rank.communicate(timeout=300)
        assert rank.returncode == 0, err
        result.append(json.loads(out.splitlines()[-1]))
    return result


@pytest.mark.parametrize("case", cases())
def test_every_rank_gets_the_exact_result(case: str, outcomes: list[dict[str, str]]) -> None:
    assert [outcome[case] for outcome in outcomes] == [""] * len(outcomes)


ENDLESS = """
import sys, torch
from cpu_backend import ops
ops.load()
name, size, rank, threads = sys.argv[1], *map(int, sys.argv[2:])
handle = torch.ops._C.init_shm_manager(name, size, rank, threads)
torch.ops._C.join_shm_manager(handle, name)
print("joined", flush=True)
data = torch.ones(100)
while True:
    torch.ops._C.shm_allreduce(handle, data)
"""


def test_killed_rank_ends_the_others_with_a_sentence() -> None:
    ranks = start(uuid.uuid4().hex, 3, 1, ["-c", ENDLESS])
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "joined\n"
        # Shared, yet nothing in a file system that could stay there.
        maps = Path(f"/proc/{rank.pid}/maps").read_text()
        assert "/memfd:cpu_backend collectives (deleted)" in maps
        assert "/dev/shm" not in maps
    time.sleep(0.2)
    ranks[1].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    for rank in (ranks[0], ranks[2]):
        _, err = rank.communicate(timeout=60)
        assert rank.returncode == 1
        assert "has lost rank 1: its process has ended" in err
    assert (
        time.monotonic() - killed < 30
    )  # a tenth of a second and Python's exit, on a busy machine
    ranks[1].communicate()

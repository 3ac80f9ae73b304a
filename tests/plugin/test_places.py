"""NUMA nodes taken by replicas, with real processes that die."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.ray_serve.places import take_node, usable_nodes
from cpu_backend.runtime.plan import Machine, ThreadSettings
from tests.plugin.fake_sysfs import graviton, write_machine, xeon_snc4

TAKE = """
import sys
from pathlib import Path
from cpu_backend.ray_serve.places import take_node
print(take_node([0, 1], float(sys.argv[2]), Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def start(folder: Path, seconds: str = "60") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TAKE, str(folder), seconds],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two replicas, one on each of two nodes."""
    processes = [start(tmp_path) for _ in range(2)]
    nodes = sorted(process.stdout.readline() for process in processes)  # type: ignore[union-attr]
    assert nodes == ["0\n", "1\n"]
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_third_replica_is_refused(tmp_path: Path, replicas: list[subprocess.Popen[str]]) -> None:
    with pytest.raises(ConfigError, match=r"\(0, 1\) has a replica: start fewer"):
        take_node([0, 1], 0.3, tmp_path)


def test_node_of_a_killed_replica_is_free(
    tmp_path: Path, replicas: list[subprocess.Popen[str]]
) -> None:
    def kill() -> None:
        time.sleep(0.5)
        replicas[1].kill()

    threading.Thread(target=kill).start()
    waiting = start(tmp_path)
    assert waiting.stdout is not None
    assert waiting.stdout.readline() in ("0\n", "1\n")
    waiting.kill()
    waiting.communicate()


def test_nodes_without_own_cpus_are_not_used(tmp_path: Path) -> None:
    tree = write_machine(tmp_path, xeon_snc4(1, 4))
    topology = tree.topology()
    limits = tree.limits(range(2, 9), topology)
    assert usable_nodes(Machine(topology, limits, ThreadSettings())) == [0, 1, 2]
    chosen = ThreadSettings(visible_nodes=(2, 1))
    assert usable_nodes(Machine(topology, limits, chosen)) == [1, 2]


def test_machine_without_numa_is_one_place(tmp_path: Path) -> None:
    tree = write_machine(tmp_path, graviton(4), numa_files=False)
    assert usable_nodes(Machine(tree.topology(), tree.limits(), ThreadSettings())) == [0]

"""NUMA nodes of a machine, each taken by one replica for as long as its process lives."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from pathlib import Path

from cpu_backend.errors import ConfigError
from cpu_backend.runtime.plan import Machine


def usable_nodes(machine: Machine) -> list[int]:
    """Nodes with CPUs that this process may use, in order."""
    visible = machine.settings.visible_nodes
    return [
        node.id
        for node in machine.topology.nodes
        if machine.limits.cpus.intersection(node.cpus) and (visible is None or node.id in visible)
    ]


def take_node(nodes: list[int], seconds: float, folder: Path | None = None) -> int:
    """A node that no other process has taken, locked until this process ends.

    Waits up to ``seconds``: in a rolling restart the old replica leaves while the new one starts.
    Raises ConfigError when none becomes free.
    """
    folder = folder or Path(tempfile.gettempdir()) / "cpu_backend_replicas"
    folder.mkdir(mode=0o777, exist_ok=True)
    with contextlib.suppress(OSError):
        folder.chmod(0o1777)
    deadline = time.monotonic() + seconds
    while True:
        for node in nodes:
            if _lock(folder / f"node{node}"):
                return node
        if time.monotonic() > deadline:
            raise ConfigError(
                f"Every NUMA node of this machine ({', '.join(map(str, nodes))}) has a replica: "
                "start fewer replicas, or declare more nodes with CPU_BACKEND_NUMA."
            )
        time.sleep(0.2)


def _lock(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True  # stays open, and with it the lock, until the process ends

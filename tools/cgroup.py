"""Limits of memory and CPU time as containers have them, by control groups of version 1."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds
LIMITS = ("memory", "cpu")


def can_be_made() -> bool:
    """Whether this user may, here."""
    return all(os.access(ROOT / kind / "cgroup.procs", os.W_OK) for kind in LIMITS)


@contextlib.contextmanager
def limited(memory: int, cpus: float) -> Iterator[list[str]]:
    """What to put before a command for it to have at most ``memory`` bytes and the time of ``cpus``
    CPUs, with all that it starts, which must have ended when this does."""
    with contextlib.ExitStack() as stack:
        groups = {kind: stack.enter_context(_group(ROOT / kind)) for kind in LIMITS}
        (groups["memory"] / "memory.limit_in_bytes").write_text(str(memory))
        (groups["cpu"] / "cpu.cfs_period_us").write_text(str(PERIOD))
        (groups["cpu"] / "cpu.cfs_quota_us").write_text(str(int(cpus * PERIOD)))
        enter = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups.values())
        yield ["sh", "-c", f'{enter} exec "$@"', "sh"]


@contextlib.contextmanager
def _group(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cpu_backend-", dir=parent))
    try:
        yield folder
    finally:
        folder.rmdir()  # its files are the kernel's

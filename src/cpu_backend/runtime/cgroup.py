"""What the cgroups of this process allow: CPU time, CPUs and memory, of version 1, 2 or both."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cpu_backend.runtime.sysfs import PROCFS, SYSFS, Memory, read_cpu_list, read_int, read_text


def read_cgroup_memory(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> Memory | None:
    """Smallest limit and smallest headroom of this process's memory cgroups and their parents."""
    levels = [
        level
        for group in _cgroup_dirs("memory", sysfs, procfs)
        for names in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        )
        if (level := _cgroup_level(group, *names)) is not None
    ]
    if not levels:
        return None
    return Memory(min(m.total for m in levels), min(m.available for m in levels))


def _cgroup_level(group: Path, limit_name: str, usage_name: str, cache_key: str) -> Memory | None:
    limit = read_int(group / limit_name)
    if limit is None:
        return None
    # The kernel drops cold page cache before it kills, so that part of the usage is free for us.
    fields = (line.split() for line in read_text(group / "memory.stat").splitlines())
    cold_cache = next((int(field[1]) for field in fields if field[0] == cache_key), 0)
    used = max(0, (read_int(group / usage_name) or 0) - cold_cache)
    return Memory(limit, max(0, limit - used))


def read_cpu_quota(sysfs: Path, procfs: Path) -> float | None:
    """CPU time in CPUs, of the tightest group; None without a limit."""
    quotas = []
    for group in _cgroup_dirs("cpu", sysfs, procfs):
        v1 = [read_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        for fields in (read_text(group / "cpu.max").split(), v1):
            # No limit is "max" in v2 and -1 in v1.
            if len(fields) == 2 and all(field.isdecimal() and int(field) for field in fields):
                quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def read_throttled(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> int:
    """How often the quota of one of its groups has stopped this process and its like."""
    counts = [0]
    for group in _cgroup_dirs("cpu", sysfs, procfs):
        for line in read_text(group / "cpu.stat").splitlines():
            key, _, value = line.partition(" ")
            if key == "nr_throttled" and value.isdecimal():
                counts.append(int(value))
    return max(counts)


def read_cpuset(kind: str, sysfs: Path, procfs: Path) -> frozenset[int]:
    """The nearest group's CPUs or memory nodes; empty where no cpuset controller is visible."""
    for group in _cgroup_dirs("cpuset", sysfs, procfs):
        for name in (f"{kind}.effective", f"effective_{kind}", kind):
            if ids := read_cpu_list(group / f"cpuset.{name}"):
                return frozenset(ids)
    return frozenset()


def _cgroup_dirs(controller: str, sysfs: Path, procfs: Path) -> Iterator[Path]:
    """This process's groups for ``controller``, leaf to root, in v1, v2 and mixed set-ups.

    A container without its own cgroup namespace is told a path of the host that its mount lacks;
    walking up then ends at the mount's root, which is the container's own group.
    """
    mount = sysfs / "fs/cgroup"
    for line in (read_text(procfs / "self/cgroup").strip() or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        names = dict.fromkeys((controllers, controller)) if controllers else ("", "unified")
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for root in (mount / name for name in names):
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth])

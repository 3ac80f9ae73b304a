"""The machine as data: CPUs, cores, NUMA nodes, and the limits put on this process.

Reads only /sys and /proc, whose roots are parameters so that tests can pass recorded trees.
`threads.py` and `memory.py` plan on it. A missing file costs detail, never an exception.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

SYSFS = Path("/sys")
PROCFS = Path("/proc")

# Linux builds stop at 8192 CPUs; the bound keeps a typo such as 0-9999999999 from filling the RAM.
MAX_CPUS = 1 << 16


@dataclass(frozen=True)
class Cpu:
    """One logical CPU. ``core_id`` and ``llc_group`` are the lowest CPU id of their group.

    The kernel's own core ids repeat between packages; these do not. ``speed`` compares CPUs of one
    machine (the kernel's capacity, else the highest clock in kHz) and is 0 where neither is known.
    """

    id: int
    core_id: int
    package: int
    numa_node: int
    llc_group: int
    speed: int


@dataclass(frozen=True)
class Memory:
    """Bytes in total, and bytes that can be had now without swapping."""

    total: int
    available: int


@dataclass(frozen=True)
class NumaNode:
    """One NUMA node; ``cpus`` is empty for memory-only nodes, ``memory`` None where unknown."""

    id: int
    cpus: tuple[int, ...]
    memory: Memory | None


@dataclass(frozen=True)
class Topology:
    """All online CPUs by id and all NUMA nodes by id; at least one of each."""

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]

    @cached_property
    def by_id(self) -> dict[int, Cpu]:
        return {cpu.id: cpu for cpu in self.cpus}

    @cached_property
    def smt_siblings(self) -> dict[int, tuple[int, ...]]:
        """Core id -> the logical CPUs of that physical core."""
        cores: dict[int, tuple[int, ...]] = {}
        for cpu in self.cpus:
            cores[cpu.core_id] = (*cores.get(cpu.core_id, ()), cpu.id)
        return cores


@dataclass(frozen=True)
class ProcessLimits:
    """What this process may use: CPUs, memory nodes, and CPU time in CPUs (None: no quota)."""

    cpus: frozenset[int]
    memory_nodes: frozenset[int]
    cpu_quota: float | None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``"0-3,8"`` -> ``(0, 1, 2, 3, 8)``: in the order given, repeats dropped, "" is empty.

    Raises ValueError for anything else.
    """
    ids: dict[int, None] = {}
    for part in filter(None, text.strip().split(",")):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise ValueError(f"{part!r} is neither a CPU id nor a range such as 0-3")
        first, last = int(ends[0]), int(ends[-1])
        if last < first or last >= MAX_CPUS:
            raise ValueError(f"{part!r} is not an ascending range of CPU ids")
        ids.update(dict.fromkeys(range(first, last + 1)))
    return tuple(ids)


def format_cpu_list(ids: Iterable[int]) -> str:
    """``{0, 1, 2, 3, 8}`` -> ``"0-3,8"``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(ids)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)


def read_topology(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> Topology:
    """Without node files all CPUs are on node 0; without topology files each CPU is a core."""
    base = sysfs / "devices/system/cpu"
    ids = _online_cpus(base, procfs)
    nodes = _read_nodes(ids, sysfs, procfs)
    node_of = {cpu: node for node in nodes for cpu in node.cpus}
    speeds = _read_speeds(base, ids)
    cpus = (_read_cpu(base, cpu, node_of.get(cpu, nodes[0]), speeds.get(cpu, 0)) for cpu in ids)
    return Topology(tuple(cpus), nodes)


def read_limits(
    topology: Topology,
    sysfs: Path = SYSFS,
    procfs: Path = PROCFS,
    affinity: Iterable[int] | None = None,
) -> ProcessLimits:
    """The affinity mask (the calling thread's unless given), cpuset, and CPU quota.

    Call it before an OpenMP runtime with OMP_PROC_BIND or GOMP_CPU_AFFINITY is loaded: that binds
    the main thread to one core, which would then look like the whole mask.
    """
    online = frozenset(topology.by_id)
    if affinity is None:
        affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else online
    mask = online & frozenset(affinity)
    cpuset = _cpuset("cpus", sysfs, procfs)
    mems = _cpuset("mems", sysfs, procfs)
    nodes = frozenset(node.id for node in topology.nodes)
    return ProcessLimits(
        # A cpuset that contradicts the mask was read from a hierarchy that is not ours.
        cpus=mask & cpuset or mask,
        memory_nodes=nodes & mems or nodes,
        cpu_quota=_read_cpu_quota(sysfs, procfs),
    )


def read_machine_memory(procfs: Path = PROCFS) -> Memory:
    """The whole machine's memory; where /proc/meminfo is missing, what the C library knows."""
    memory = _read_meminfo(procfs / "meminfo")
    if memory is not None:
        return memory
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    pages, free = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_AVPHYS_PAGES")
    return Memory(pages * page_bytes, free * page_bytes)


def read_node_memory(node: int, sysfs: Path = SYSFS) -> Memory | None:
    """One NUMA node's memory now, or None where the machine has just one node, or no node files.

    Of a single node /proc/meminfo says all, and more truly: a virtual machine whose memory was
    plugged in after boot showed 8 of its 24 GiB in the node's file (Linux 6.18).
    """
    if len(list(sysfs.glob("devices/system/node/node[0-9]*"))) < 2:
        return None
    return _read_meminfo(sysfs / f"devices/system/node/node{node}/meminfo")


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
    limit = _read_int(group / limit_name)
    if limit is None:
        return None
    # The kernel drops cold page cache before it kills, so that part of the usage is free for us.
    fields = (line.split() for line in _read(group / "memory.stat").splitlines())
    cold_cache = next((int(field[1]) for field in fields if field[0] == cache_key), 0)
    used = max(0, (_read_int(group / usage_name) or 0) - cold_cache)
    return Memory(limit, max(0, limit - used))


def _read_cpu_quota(sysfs: Path, procfs: Path) -> float | None:
    quotas = []
    for group in _cgroup_dirs("cpu", sysfs, procfs):
        v1 = [_read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        for fields in (_read(group / "cpu.max").split(), v1):
            # No limit is "max" in v2 and -1 in v1.
            if len(fields) == 2 and all(field.isdecimal() and int(field) for field in fields):
                quotas.append(int(fields[0]) / int(fields[1]))
    return min(quotas, default=None)


def _cpuset(kind: str, sysfs: Path, procfs: Path) -> frozenset[int]:
    """The nearest group's CPUs or memory nodes; empty where no cpuset controller is visible."""
    for group in _cgroup_dirs("cpuset", sysfs, procfs):
        for name in (f"{kind}.effective", f"effective_{kind}", kind):
            if ids := _cpu_list(group / f"cpuset.{name}"):
                return frozenset(ids)
    return frozenset()


def _cgroup_dirs(controller: str, sysfs: Path, procfs: Path) -> Iterator[Path]:
    """This process's groups for ``controller``, leaf to root, in v1, v2 and mixed set-ups.

    A container without its own cgroup namespace is told a path of the host that its mount lacks;
    walking up then ends at the mount's root, which is the container's own group.
    """
    mount = sysfs / "fs/cgroup"
    for line in (_read(procfs / "self/cgroup").strip() or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        names = dict.fromkeys((controllers, controller)) if controllers else ("", "unified")
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for root in (mount / name for name in names):
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth])


def _read_cpu(base: Path, cpu: int, node: NumaNode, speed: int) -> Cpu:
    place = base / f"cpu{cpu}"
    siblings = _cpu_list(place / "topology/thread_siblings_list")
    package = _read_int(place / "topology/physical_package_id") or 0
    # The highest index is the outermost cache; without cache files take the node for the group.
    caches = sorted(place.glob("cache/index[0-9]*"))
    llc = _cpu_list(caches[-1] / "shared_cpu_list") if caches else node.cpus
    core_id, llc_group = min(siblings, default=cpu), min(llc, default=cpu)
    return Cpu(cpu, core_id, max(package, 0), node.id, llc_group, speed)


def _online_cpus(base: Path, procfs: Path) -> tuple[int, ...]:
    if online := _cpu_list(base / "online"):
        return online
    names = (line.split()[0] for line in _read(procfs / "stat").splitlines() if line[:3] == "cpu")
    return tuple(int(name[3:]) for name in names if name[3:]) or tuple(range(os.cpu_count() or 1))


def _read_nodes(online: tuple[int, ...], sysfs: Path, procfs: Path) -> tuple[NumaNode, ...]:
    base = sysfs / "devices/system/node"
    nodes = []
    for node in sorted(int(place.name[4:]) for place in base.glob("node[0-9]*")):
        cpus = frozenset(online).intersection(_cpu_list(base / f"node{node}/cpulist"))
        nodes.append(NumaNode(node, tuple(sorted(cpus)), read_node_memory(node, sysfs)))
    if len(nodes) > 1 and any(node.cpus for node in nodes):
        return tuple(nodes)
    return (NumaNode(nodes[0].id if nodes else 0, online, read_machine_memory(procfs)),)


def _read_speeds(base: Path, ids: tuple[int, ...]) -> dict[int, int]:
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {cpu: _read_int(base / f"cpu{cpu}" / name) for cpu in ids}
        known = {cpu: speed for cpu, speed in speeds.items() if speed}
        if len(known) == len(ids):
            return known
    return {}


def _read_meminfo(path: Path) -> Memory | None:
    """Read /proc/meminfo, or a node's meminfo, whose lines start with "Node 0"."""
    fields = (line.partition(":") for line in _read(path).splitlines())
    info = {key.split()[-1]: int(value.split()[0]) * 1024 for key, _, value in fields if value}
    if "MemTotal" not in info:
        return None
    # Nodes have no MemAvailable; these four are what the kernel builds it from.
    parts = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    available = info.get("MemAvailable", sum(info.get(part, 0) for part in parts))
    return Memory(info["MemTotal"], available)


def _cpu_list(path: Path) -> tuple[int, ...]:
    try:
        return parse_cpu_list(_read(path))
    except ValueError:
        return ()


def _read_int(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.removeprefix("-").isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""

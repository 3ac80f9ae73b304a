"""The machine as data: CPUs, cores, NUMA nodes, and the limits put on this process.

Reads only /sys and /proc, whose roots are parameters so that tests can pass recorded trees.
`plan.py` and `memory.py` plan on it. A missing file costs detail, never an exception.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.runtime import system
from cpu_backend.runtime.cgroup import read_cpu_quota, read_cpuset
from cpu_backend.runtime.sysfs import (
    PROCFS,
    SYSFS,
    Memory,
    format_cpu_list,
    parse_cpu_list,
    read_cpu_list,
    read_int,
    read_meminfo,
    read_text,
)

DECLARED_ENV = envs.NUMA.name
SAME_MEMORY_DISTANCE = 11  # by /sys/devices/system/node/*/distance; a node is 10 from itself


@dataclass(frozen=True)
class Cpu:
    """One logical CPU. ``core_id`` and ``llc_group`` are the lowest CPU id of their group.

    The kernel's own core ids repeat between packages; these do not. ``numa_node`` is the node it
    is planned with. ``speed`` compares CPUs of one machine (the kernel's capacity, else the highest
    clock in kHz) and is 0 where neither is known. ``book`` is (drawer, book) on s390x.
    """

    id: int
    core_id: int
    package: int
    numa_node: int
    llc_group: int
    speed: int
    book: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class NumaNode:
    """One node of the plan; ``cpus`` is empty for memory-only nodes (a GPU's, an expander's).

    ``homes`` are the kernel's NUMA nodes to take memory from; empty where that is no choice, as
    on a machine with only one.
    """

    id: int
    cpus: tuple[int, ...]
    homes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Topology:
    """All online CPUs by id and all nodes by id; at least one of each. ``kind`` names the nodes.

    ``homes`` are all of the kernel's NUMA nodes; empty where there is only one.
    """

    cpus: tuple[Cpu, ...]
    nodes: tuple[NumaNode, ...]
    kind: str = "NUMA node"
    homes: tuple[int, ...] = ()

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


def read_topology(sysfs: Path = SYSFS, procfs: Path = PROCFS, declared: str = "") -> Topology:
    """Without node files all CPUs are on node 0; without topology files each CPU is a core.

    ``declared`` (CPU lists with | between them) puts nodes in the place of the machine's. A machine
    of one NUMA node and several books (s390x) is planned by books, one whose firmware shows each
    last-level cache as a node by the nodes that share their memory.
    """
    base = sysfs / "devices/system/cpu"
    ids = _online_cpus(base, procfs)
    nodes = _read_nodes(ids, sysfs)
    node_of = {cpu: node for node in nodes for cpu in node.cpus}
    speeds = _read_speeds(base, ids)
    cpus = (_read_cpu(base, cpu, node_of.get(cpu, nodes[0]), speeds.get(cpu, 0)) for cpu in ids)
    homes = tuple(node.id for node in nodes if node.homes)
    topology = Topology(tuple(cpus), nodes, homes=homes)
    if declared.strip():
        return _regroup(topology, _declared_groups(topology, declared), "declared node")
    books: dict[tuple[int, int], tuple[int, ...]] = {}
    for cpu in topology.cpus:
        books[cpu.book] = (*books.get(cpu.book, ()), cpu.id)
    if len(nodes) == 1 and len(books) > 1:
        return _regroup(topology, [books[book] for book in sorted(books)], "book")
    domains = _memory_domains(topology, sysfs)
    if len(domains) < sum(bool(node.cpus) for node in nodes):
        return _regroup(topology, domains, "memory domain")
    return topology


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
        affinity = system.allowed_cpus()
    mask = online if affinity is None else online & frozenset(affinity)
    cpuset = read_cpuset("cpus", sysfs, procfs)
    mems = read_cpuset("mems", sysfs, procfs)
    allowed = (n.id for n in topology.nodes if not n.homes or not mems.isdisjoint(n.homes))
    nodes = frozenset(node.id for node in topology.nodes)
    return ProcessLimits(
        # A cpuset that contradicts the mask was read from a hierarchy that is not ours.
        cpus=mask & cpuset or mask,
        memory_nodes=frozenset(allowed) or nodes if mems else nodes,
        cpu_quota=read_cpu_quota(sysfs, procfs),
    )


def read_machine_memory(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> Memory:
    """The machine's memory, less that of nodes without CPUs, on which nothing is planned; where
    /proc/meminfo is missing, what the C library knows."""
    memory = read_meminfo(procfs / "meminfo")
    if memory is not None:
        nodes = _read_nodes(_online_cpus(sysfs / "devices/system/cpu", procfs), sysfs)
        apart = read_nodes_memory((node.id for node in nodes if not node.cpus), sysfs)
        if apart is None:
            return memory
        return Memory(memory.total - apart.total, max(0, memory.available - apart.available))
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    pages = os.sysconf("SC_PHYS_PAGES")
    # macOS does not tell what is free; what lies in caches can be had as well.
    free = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else pages
    return Memory(pages * page_bytes, free * page_bytes)


def read_nodes_memory(nodes: Iterable[int], sysfs: Path = SYSFS) -> Memory | None:
    """What these NUMA nodes of the kernel have now; None where none or no file is named.

    Of a machine's single node, which no plan names, /proc/meminfo says all, and more truly: a
    virtual machine whose memory was plugged in after boot showed 8 of its 24 GiB in the node's file
    (Linux 6.18).
    """
    read = (read_meminfo(sysfs / f"devices/system/node/node{node}/meminfo") for node in nodes)
    parts = [memory for memory in read if memory is not None]
    if not parts:
        return None
    return Memory(sum(part.total for part in parts), sum(part.available for part in parts))


def _declared_groups(topology: Topology, declared: str) -> list[tuple[int, ...]]:
    try:
        groups = [parse_cpu_list(text) for text in declared.split("|")]
    except ValueError as error:
        raise ConfigError(
            f"{DECLARED_ENV} is wrong, {error}: give the CPUs of each node, such as 0-3|4-7."
        ) from None
    named = [cpu for group in groups for cpu in group]
    absent = set(named) - topology.by_id.keys()
    if not all(groups) or len(named) > len(set(named)) or absent:
        cause = "leaves a node without CPUs"
        if absent:
            cause = f"names CPUs {format_cpu_list(absent)}, which do not exist or are offline"
        elif all(groups):
            cause = "names a CPU twice"
        raise ConfigError(
            f"{DECLARED_ENV}={declared!r} {cause}: give the CPUs of each node, such as 0-3|4-7,"
            f" from {format_cpu_list(topology.by_id)}."
        )
    return groups


def _regroup(topology: Topology, groups: list[tuple[int, ...]], kind: str) -> Topology:
    """The same CPUs on other nodes, numbered in the order of the groups; the rest is left out."""
    cpus: list[Cpu] = []
    nodes: list[NumaNode] = []
    homes_of = {node.id: node.homes for node in topology.nodes}
    for node_id, group in enumerate(groups):
        members = [topology.by_id[cpu] for cpu in group]
        homes = {home for cpu in members for home in homes_of[cpu.numa_node]}
        chosen = tuple(sorted(homes)) if homes < set(topology.homes) else ()
        nodes.append(NumaNode(node_id, tuple(sorted(group)), chosen))
        cpus += [replace(cpu, numa_node=node_id) for cpu in members]
    by_id = tuple(sorted(cpus, key=lambda cpu: cpu.id))
    return Topology(by_id, tuple(nodes), kind, topology.homes)


def _memory_domains(topology: Topology, sysfs: Path) -> list[tuple[int, ...]]:
    """The CPUs of nodes that share their memory, if each node is one last-level cache.

    AMD's firmware can show each L3 as a node ("ACPI SRAT L3 Cache as NUMA Domain") whatever the
    memory is interleaved over; nodes of the same memory are then 11 apart, others 12 or more.
    Intel's half sockets are 11 apart, too, and have memory of their own; their cores are parts of
    one cache.
    """
    nodes = [node for node in topology.nodes if node.cpus]
    members: dict[int, set[int]] = {}
    for cpu in topology.cpus:
        members.setdefault(cpu.llc_group, set()).add(cpu.id)
    caches = set(map(frozenset, members.values()))
    if any(frozenset(node.cpus) not in caches for node in nodes):
        return [node.cpus for node in nodes]
    domains: dict[tuple[int, ...], tuple[int, ...]] = {}
    for node in nodes:
        text = read_text(sysfs / f"devices/system/node/node{node.id}/distance")
        away = zip(topology.nodes, map(int, text.split()), strict=False)
        near = tuple(n.id for n, distance in away if distance <= SAME_MEMORY_DISTANCE)
        near = near or (node.id,)
        domains[near] = (*domains.get(near, ()), *node.cpus)
    return list(domains.values())


def _read_cpu(base: Path, cpu: int, node: NumaNode, speed: int) -> Cpu:
    place = base / f"cpu{cpu}"
    siblings = read_cpu_list(place / "topology/thread_siblings_list")
    package, drawer, book = (
        max(read_int(place / f"topology/{name}_id") or 0, 0)
        for name in ("physical_package", "drawer", "book")
    )
    # The highest index is the outermost cache; without cache files take the node for the group.
    caches = sorted(place.glob("cache/index[0-9]*"))
    llc = read_cpu_list(caches[-1] / "shared_cpu_list") if caches else node.cpus
    core_id, llc_group = min(siblings, default=cpu), min(llc, default=cpu)
    return Cpu(cpu, core_id, package, node.id, llc_group, speed, (drawer, book))


def _online_cpus(base: Path, procfs: Path) -> tuple[int, ...]:
    if online := read_cpu_list(base / "online"):
        return online
    lines = read_text(procfs / "stat").splitlines()
    names = (line.split()[0] for line in lines if line[:3] == "cpu")
    return tuple(int(name[3:]) for name in names if name[3:]) or tuple(range(os.cpu_count() or 1))


def _read_nodes(online: tuple[int, ...], sysfs: Path) -> tuple[NumaNode, ...]:
    base = sysfs / "devices/system/node"
    nodes = []
    for node in sorted(int(place.name[4:]) for place in base.glob("node[0-9]*")):
        cpus = frozenset(online).intersection(read_cpu_list(base / f"node{node}/cpulist"))
        nodes.append(NumaNode(node, tuple(sorted(cpus)), (node,)))
    if len(nodes) > 1 and any(node.cpus for node in nodes):
        return tuple(nodes)
    return (NumaNode(nodes[0].id if nodes else 0, online),)


def _read_speeds(base: Path, ids: tuple[int, ...]) -> dict[int, int]:
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {cpu: read_int(base / f"cpu{cpu}" / name) for cpu in ids}
        known = {cpu: speed for cpu, speed in speeds.items() if speed}
        if len(known) == len(ids):
            return known
    return {}

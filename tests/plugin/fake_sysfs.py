"""Writes small /sys and /proc trees, in the kernel's formats, from a short description.

The machines are the CPU numberings of real ones; tests read them back through the public readers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cpu_backend.runtime.sysfs import format_cpu_list
from cpu_backend.runtime.topology import ProcessLimits, Topology, read_limits, read_topology

GIB = 1 << 30


@dataclass(frozen=True)
class FakeCpu:
    """One logical CPU; ``core`` and ``llc`` are labels, unique machine-wide; books are s390x's."""

    id: int
    core: int
    node: int = 0
    package: int = 0
    llc: int = 0
    khz: int = 0
    book: int | None = None


@dataclass(frozen=True)
class FakeMachine:
    """A written tree, and the readers pointed at it."""

    root: Path

    @property
    def sysfs(self) -> Path:
        return self.root / "sys"

    @property
    def procfs(self) -> Path:
        return self.root / "proc"

    def topology(self) -> Topology:
        return read_topology(self.sysfs, self.procfs)

    def limits(
        self, affinity: Sequence[int] | None = None, topology: Topology | None = None
    ) -> ProcessLimits:
        """The limits under ``affinity``; all CPUs are allowed unless it is given."""
        topology = topology or self.topology()
        mask = topology.by_id.keys() if affinity is None else affinity
        return read_limits(topology, self.sysfs, self.procfs, mask)

    def write(self, path: str, text: str) -> None:
        """Write one file given relative to the root, such as ``sys/fs/cgroup/cpu.max``."""
        target = f"{self.root}/{path}"
        try:
            file = open(target, "w")  # noqa: SIM115 (closed below)
        except FileNotFoundError:  # asking first would cost a large machine most of its time
            os.makedirs(os.path.dirname(target))
            file = open(target, "w")  # noqa: SIM115
        with file:
            file.write(text + "\n")

    def write_cgroup(self, self_cgroup: str, files: Mapping[str, str]) -> None:
        """Write /proc/self/cgroup and files below /sys/fs/cgroup."""
        self.write("proc/self/cgroup", self_cgroup)
        for path, text in files.items():
            self.write(f"sys/fs/cgroup/{path}", text)


def xeon_snc4(packages: int = 2, cores_per_node: int = 15) -> list[FakeCpu]:
    """Sapphire Rapids in SNC-4: four nodes a socket, second siblings numbered after all cores."""
    cores = packages * 4 * cores_per_node
    return [
        FakeCpu(sibling * cores + core, core, node, node // 4, node)
        for sibling in range(2)
        for core in range(cores)
        for node in [core // cores_per_node]
    ]


def epyc_nps4(cores_per_node: int = 16) -> list[FakeCpu]:
    """One EPYC socket in NPS-4, SMT off, eight cores per L3."""
    return [FakeCpu(core, core, core // cores_per_node, 0, core // 8) for core in range(64)]


def graviton(cores: int = 64) -> list[FakeCpu]:
    """Arm server: no SMT, one node."""
    return [FakeCpu(core, core) for core in range(cores)]


def hybrid_laptop(low_power_cores: int = 2) -> list[FakeCpu]:
    """Meteor Lake: 6 P cores with adjacent siblings, 8 E cores, then LP-E cores without the L3."""
    p_cores = [FakeCpu(cpu, cpu // 2, khz=4_800_000) for cpu in range(12)]
    e_cores = [FakeCpu(cpu, cpu, khz=3_800_000) for cpu in range(12, 20)]
    last = range(20, 20 + low_power_cores)
    return p_cores + e_cores + [FakeCpu(cpu, cpu, llc=9, khz=2_500_000) for cpu in last]


def write_machine(
    root: Path,
    cpus: Sequence[FakeCpu],
    *,
    node_gib: int = 64,
    numa_files: bool = True,
    topology_files: bool = True,
    near: int = 12,
    memory_only: Mapping[int, float] | None = None,
) -> FakeMachine:
    """Write the tree for ``cpus``; each node has ``node_gib`` in total and 3/4 of it available.

    Nodes of one package are ``near`` to each other, others far.  ``memory_only`` are nodes without
    CPUs and their GiB.
    """
    machine = FakeMachine(root)
    base = "sys/devices/system"
    machine.write(f"{base}/cpu/online", format_cpu_list(cpu.id for cpu in cpus))
    gib = dict.fromkeys((cpu.node for cpu in cpus), node_gib) | dict(memory_only or {})
    for cpu in cpus:
        if topology_files:
            _write_cpu(machine, f"{base}/cpu/cpu{cpu.id}", cpu, cpus)
    for node in sorted(gib) if numa_files else ():
        ids = format_cpu_list(cpu.id for cpu in cpus if cpu.node == node)
        machine.write(f"{base}/node/node{node}/cpulist", ids)
        machine.write(f"{base}/node/node{node}/meminfo", _node_meminfo(node, gib[node]))
        distances = _distances(node, sorted(gib), cpus, near)
        machine.write(f"{base}/node/node{node}/distance", distances)
    total = sum(gib.values())
    machine.write("proc/meminfo", _meminfo(total, total * 3 / 4))
    return machine


def _distances(node: int, nodes: Sequence[int], cpus: Sequence[FakeCpu], near: int) -> str:
    package = dict.fromkeys(nodes) | {cpu.node: cpu.package for cpu in cpus}

    def to(other: int) -> int:
        if other == node:
            return 10
        if package[other] is None or package[node] is None:
            return 80
        return near if package[other] == package[node] else 32

    return " ".join(str(to(other)) for other in nodes)


def _write_cpu(machine: FakeMachine, place: str, cpu: FakeCpu, cpus: Sequence[FakeCpu]) -> None:
    siblings = format_cpu_list(other.id for other in cpus if other.core == cpu.core)
    machine.write(f"{place}/topology/thread_siblings_list", siblings)
    machine.write(f"{place}/topology/physical_package_id", str(cpu.package))
    machine.write(f"{place}/cache/index0/shared_cpu_list", siblings)
    llc = format_cpu_list(other.id for other in cpus if other.llc == cpu.llc)
    machine.write(f"{place}/cache/index3/shared_cpu_list", llc)
    if cpu.book is not None:
        machine.write(f"{place}/topology/book_id", str(cpu.book))
        machine.write(f"{place}/topology/drawer_id", "0")
    if cpu.khz:
        machine.write(f"{place}/cpufreq/cpuinfo_max_freq", str(cpu.khz))


def _meminfo(total_gib: float, available_gib: float) -> str:
    free = _kib(available_gib / 2)
    return (
        f"MemTotal:       {_kib(total_gib)} kB\nMemFree:        {free} kB\n"
        f"MemAvailable:   {_kib(available_gib)} kB\nHugePages_Total:       0"
    )


def _node_meminfo(node: int, total_gib: float) -> str:
    """Free 1/2, and 1/4 more in page cache and slabs, so that 3/4 can be had."""
    parts = {
        "MemTotal": total_gib,
        "MemFree": total_gib / 2,
        "Active(anon)": total_gib / 4,
        "Active(file)": total_gib / 8,
        "Inactive(file)": total_gib / 16,
        "SReclaimable": total_gib / 16,
    }
    return "\n".join(f"Node {node} {key}: {_kib(gib)} kB" for key, gib in parts.items())


def _kib(gib: float) -> int:
    return int(gib * GIB / 1024)

"""The machine as a record that stands beside its figures, and the cores that every peer gets."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from cpu_backend.runtime.sysfs import format_cpu_list
from cpu_backend.runtime.topology import (
    read_limits,
    read_machine_memory,
    read_topology,
)


@dataclass(frozen=True)
class Machine:
    """``cpus`` has one logical CPU of each physical core that this process may use."""

    model: str
    architecture: str
    flags: tuple[str, ...]
    cpus: tuple[int, ...]
    memory_bytes: int

    @property
    def threads(self) -> int:
        return len(self.cpus)

    @property
    def cpu_list(self) -> str:
        return format_cpu_list(self.cpus)


# The flags that decide which kernels anyone has.
TELLING_FLAGS = (
    *("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni"),
    *("amx_bf16", "amx_int8", "asimdhp", "asimddp", "bf16", "i8mm", "vx", "vxe2"),
)


def read_machine() -> Machine:
    topology = read_topology()
    allowed = read_limits(topology).cpus
    one_per_core = {cpu.core_id: cpu.id for cpu in reversed(topology.cpus) if cpu.id in allowed}
    info = cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or info.get("features", "")).split())
    return Machine(
        model=info.get("model name") or info.get("vendor_id") or platform.processor(),
        architecture=platform.machine(),
        flags=tuple(flag for flag in TELLING_FLAGS if flag in flags),
        cpus=tuple(sorted(one_per_core.values())),
        memory_bytes=read_machine_memory().total,
    )


def cpuinfo() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    entries: dict[str, str] = {}
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            entries.setdefault(key.strip(), value.strip())
    return entries

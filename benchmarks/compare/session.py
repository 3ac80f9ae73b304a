"""What a runner and all processes it has started use: memory, and CPU time beside everybody's.

The processes are those of one session (in the kernel's sense), found in /proc, so that one that has
lost its parent is still counted and can still be ended.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the command in brackets.
STATE, SESSION, FIRST_TIME, LAST_TIME = 0, 3, 11, 14


@dataclass(frozen=True)
class CpuTime:
    """Seconds: on the clock, and of CPU time used until then by the session and by the machine."""

    clock: float
    session: float
    machine: float

    def other_cores_since(self, earlier: CpuTime) -> float:
        """How many cores everybody else kept busy on average, stolen time of the host included."""
        others = self.machine - earlier.machine - (self.session - earlier.session)
        return max(0.0, others / max(self.clock - earlier.clock, TICK_S))


@dataclass(frozen=True)
class Session:
    leader: int

    def processes(self) -> dict[int, list[str]]:
        """Fields of /proc/PID/stat of every process that still runs."""
        found = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    if int(fields[SESSION]) == self.leader and fields[STATE] != "Z":
                        found[int(entry.name)] = fields
        return found

    def memory_bytes(self, file: str, field: str) -> int:
        """What a file of /proc/PID says in kB, summed over the processes."""
        total = 0
        for pid in self.processes():
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith(field))
        return total * 1024

    def cpu_time(self) -> CpuTime:
        """The times of a process contain those of its ended children."""
        times = [
            sum(map(int, fields[FIRST_TIME : LAST_TIME + 1]))
            for fields in self.processes().values()
        ]
        return CpuTime(time.perf_counter(), sum(times) * TICK_S, machine_cpu_time())


def machine_cpu_time() -> float:
    """Seconds that all CPUs were busy, or the host had taken away, since they started."""
    with open("/proc/stat") as lines:
        user, nice, system, _, _, irq, softirq, steal = map(int, lines.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * TICK_S

"""What this backend would do here, and why: ``python -m cpu_backend.info [--json]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpu_backend
from cpu_backend import activation, envs, ops
from cpu_backend.errors import ConfigError
from cpu_backend.runtime import memory, threads, topology

GIB = 1 << 30


@dataclass(frozen=True)
class Binding:
    """Where a rank computes; ``memory`` is the outcome of binding it, empty on a single node."""

    num_threads: int
    cpus: tuple[int, ...]
    node: int | None
    reason: str
    memory: str = ""

    def __str__(self) -> str:
        where = f"on CPUs {topology.format_cpu_list(self.cpus)}" if self.cpus else "unbound"
        node = "" if self.node is None else f", NUMA node {self.node}"
        bound = f" (memory: {self.memory})" if self.memory else ""
        return f"{self.num_threads} threads {where}{node}{bound}: {self.reason}"


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def banner(library: ops.Library, binding: Binding, dtype: str) -> list[str]:
    """The lines every start prints."""
    return [
        f"version {cpu_backend.__version__} on {cpu_model()}",
        f"instruction set {library.target} of {', '.join(library.runnable)} runnable here",
        str(binding),
        f"dtype {dtype.removeprefix('torch.')}; linear: packed {library.target} panels; "
        f"attention: paged {library.target}; eager, no compiler at run time",
    ]


def collect() -> dict[str, Any]:
    """Everything about this machine and build, as data."""
    topo = topology.read_topology()
    limits = topology.read_limits(topo)
    plan = threads.plan_threads(topo, limits, threads.ThreadSettings.from_env())
    status = memory.read_memory_status(plan.node)
    decision = activation.decide()
    report: dict[str, Any] = {
        "version": cpu_backend.__version__,
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "active": decision.active,
        "because": decision.reason,
        "cpus": len(topo.cpus),
        "allowed_cpus": topology.format_cpu_list(limits.cpus),
        "cpu_quota": limits.cpu_quota,
        "numa_nodes": {str(node.id): topology.format_cpu_list(node.cpus) for node in topo.nodes},
        "binding": str(Binding(plan.num_threads, plan.cpus, plan.node, plan.reason)),
        "memory_gib": round(status.total / GIB, 2),
        "memory_available_gib": round(status.available / GIB, 2),
        "memory_limited_by": status.limited_by,
        "environment": {v.name: os.environ[v.name] for v in envs.ALL if v.name in os.environ},
    }
    library = ops.load()
    report |= {
        "instruction_set": library.target,
        "runnable": list(library.runnable),
        "built": list(library.built),
        "built_for_torch": library.torch,
    }
    return report


def main() -> int:
    """Print the report; 1 with one sentence when a setting is wrong."""
    parser = argparse.ArgumentParser(prog="python -m cpu_backend.info", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    arguments = parser.parse_args()
    try:
        report = collect()
    except ConfigError as error:
        print(f"cpu_backend: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report, indent=2))
        return 0
    width = max(map(len, report))
    for key, value in report.items():
        print(f"{key.replace('_', ' '):<{width}}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

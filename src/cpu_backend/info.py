"""What this backend would do here, and why: ``python -m cpu_backend.info [--json]``.

``--plan [-tp N] [-pp N] [-dp N]`` shows where the ranks of such a server would compute; ``--check``
examines everything that a server needs (doctor/), and ends with 1 where something stands in its
way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cpu_backend
from cpu_backend import activation, doctor, envs, native
from cpu_backend.errors import ConfigError
from cpu_backend.runtime import memory
from cpu_backend.runtime.layout import Layout, describe
from cpu_backend.runtime.plan import Machine, ThreadPlan
from cpu_backend.runtime.reservations import Reservations
from cpu_backend.runtime.sysfs import format_cpu_list

if TYPE_CHECKING:
    pass  # loads torch, which may be missing where this is asked

GIB = 1 << 30
ARM_CPUS = {
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0xc0", "0xac3"): "Ampere-1",
}


@dataclass(frozen=True)
class Binding:
    """Where a rank computes; ``node`` as in "NUMA node 0", empty when it spans several; ``memory``
    is the outcome of binding it, empty where there is no choice."""

    num_threads: int
    cpus: tuple[int, ...]
    node: str
    reason: str
    memory: str = ""

    def __str__(self) -> str:
        where = f"on CPUs {format_cpu_list(self.cpus)}" if self.cpus else "unbound"
        node = f", {self.node}" if self.node else ""
        bound = f" (memory: {self.memory})" if self.memory else ""
        threads = f"{self.num_threads} thread{'' if self.num_threads == 1 else 's'}"
        return f"{threads} {where}{node}{bound}: {self.reason}"


def binding_of(machine: Machine, plan: ThreadPlan, memory: str = "") -> Binding:
    """``plan`` in the words of the log."""
    node = "" if plan.node is None else f"{machine.topology.kind} {plan.node}"
    return Binding(plan.num_threads, plan.cpus, node, plan.reason, memory)


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    values = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    # ARM's kernels give numbers in place of a name.
    part = (values.get("CPU implementer", ""), values.get("CPU part", ""))
    return values.get("model name") or ARM_CPUS.get(part) or platform.machine()


def banner(library: native.Library, dtype: str) -> list[str]:
    """The lines every start prints once, whatever the number of ranks."""
    return [
        f"version {cpu_backend.__version__} on {cpu_model()}",
        f"instruction set {library.target} of {', '.join(library.runnable)} runnable here",
        f"dtype {dtype.removeprefix('torch.')}; {_products(library)}; no compiler at run time",
        *native.other_versions(),
    ]


def _products(library: native.Library) -> str:
    """What computes linear layers, and experts where that is something else."""
    from cpu_backend import providers

    chosen = {kind: one for kind, one in providers.describe().items() if one != "native"}
    return "; ".join(
        f"{kind}: {chosen.get(kind, f'packed {library.target} panels')}"
        for kind in dict.fromkeys(("linear", *chosen))
    )


def collect() -> dict[str, Any]:
    """Everything about this machine and build, as data."""
    try:
        from cpu_backend import ops, providers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"cpu_backend computes with torch, and this Python ({sys.executable}) has no module "
            f"{error.name}: use the one of the environment that has vLLM, or install vLLM there."
        ) from error
    machine = Machine.read()
    topo, limits = machine.topology, machine.limits
    [plan] = machine.plan(1, Reservations().taken())
    status = memory.read_memory_status(plan.memory_nodes)
    decision = activation.decide()
    report: dict[str, Any] = {
        "version": cpu_backend.__version__,
        "other_versions": " ".join(native.other_versions()) or "none",
        "python": platform.python_version(),
        "cpu": cpu_model(),
        "active": decision.active,
        "because": decision.reason,
        "cpus": len(topo.cpus),
        "allowed_cpus": format_cpu_list(limits.cpus),
        "cpu_quota": limits.cpu_quota,
        "numa_nodes": {str(node.id): format_cpu_list(node.cpus) for node in topo.nodes},
        "binding": str(binding_of(machine, plan)),
        "memory_gib": round(status.total / GIB, 2),
        "memory_available_gib": round(status.available / GIB, 2),
        "memory_limited_by": status.limited_by,
        "servers": Reservations().describe(),
        **providers.describe(),
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
    parser.add_argument("--plan", action="store_true", help="where the ranks of a server would go")
    parser.add_argument("--check", action="store_true", help="whether a server could start here")
    for short, name in (("-tp", "tensor"), ("-pp", "pipeline"), ("-dp", "data")):
        parser.add_argument(
            short, f"--{name}-parallel-size", dest=name, type=int, default=1, metavar="N"
        )
    arguments = parser.parse_args()
    if arguments.check:
        findings = doctor.examine()
        print(doctor.as_json(findings) if arguments.json else doctor.as_text(findings))
        return int(any(finding.level is doctor.Level.PROBLEM for finding in findings))
    try:
        if arguments.plan:
            layout = Layout(arguments.tensor, arguments.pipeline, arguments.data)
            print("\n".join(describe(Machine.read(), layout, Reservations().taken())))
            return 0
        report = collect()
    except ConfigError as error:
        print(f"cpu_backend: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(f"cpu_backend: {error}: `--check` says how to mend it.", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report, indent=2))
        return 0
    width = max(map(len, report))
    for key, value in report.items():
        print(f"{key.replace('_', ' '):<{width}}  {value}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # head reads as much as it wants
    sys.exit(main())

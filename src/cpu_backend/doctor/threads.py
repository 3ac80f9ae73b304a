"""Where a server would compute: affinity, cpusets, CPU quotas, NUMA nodes and the right to bind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_backend.doctor.finding import Finding, note, ok, told
from cpu_backend.errors import ConfigError
from cpu_backend.info import binding_of
from cpu_backend.runtime import system
from cpu_backend.runtime.cgroup import read_throttled
from cpu_backend.runtime.plan import Machine, ThreadPlan, ThreadSettings
from cpu_backend.runtime.reservations import Reservations
from cpu_backend.runtime.sysfs import PROCFS, SYSFS, format_cpu_list
from cpu_backend.runtime.topology import DECLARED_ENV, Topology, read_limits, read_topology

RIGHTS = "docker run --cap-add SYS_NICE, or a seccomp profile that allows it"


@dataclass(frozen=True)
class Facts:
    """``machine`` and ``plan``, or the sentence why there is none; ``throttled`` how often the CPU
    quota has stopped this container; ``may_bind_threads`` and ``may_bind_memory`` whether the
    system allows it (None: not known here); ``servers`` a line for each that runs."""

    machine: Machine | None
    plan: ThreadPlan | None
    mistake: str
    throttled: int
    may_bind_threads: bool | None
    may_bind_memory: bool | None
    servers: tuple[str, ...]


def read(
    sysfs: Path = SYSFS,
    procfs: Path = PROCFS,
    environ: Mapping[str, str] = os.environ,
    affinity: frozenset[int] | None = None,
) -> Facts:
    """``affinity``: this thread's mask unless given."""
    machine, plan, mistake = None, None, ""
    table = Reservations()
    try:
        topology = read_topology(sysfs, procfs, environ.get(DECLARED_ENV, ""))
        limits = read_limits(topology, sysfs, procfs, affinity)
        machine = Machine(topology, limits, ThreadSettings.from_env(environ))
        [plan] = machine.plan(1, table.taken())
    except ConfigError as error:
        mistake = str(error)
    return Facts(
        machine,
        plan,
        mistake,
        read_throttled(sysfs, procfs),
        system.may_bind_threads(),
        system.may_bind_memory(),
        tuple(table.describe()),
    )


def judge(facts: Facts) -> Iterator[Finding]:
    if facts.mistake:
        yield told("threads", facts.mistake)
    if facts.machine is not None:
        if facts.plan is not None:
            yield ok("threads", str(binding_of(facts.machine, facts.plan)))
        yield from _limits(facts.machine)
        if facts.throttled:
            yield note(
                "quota",
                f"the CPU quota has stopped this container {facts.throttled} times so far",
                "raise it, or give whole CPUs in its place (docker run --cpuset-cpus)",
            )
        yield from _rights(facts, facts.machine.topology)
    for server in facts.servers:
        yield note("servers", f"another server computes here, {server}", "expect to share memory")


def _limits(machine: Machine) -> Iterator[Finding]:
    allowed, online = machine.limits.cpus, machine.topology.by_id
    count = f"{len(allowed)} of {len(online)} online CPUs"
    yield ok("cpus", f"{count} may be used ({format_cpu_list(allowed)})")
    quota = machine.limits.cpu_quota
    if quota is not None and quota < 1:
        yield note("quota", f"the CPU quota is {quota:g} of one CPU", "give at least one whole CPU")
    elif quota is not None and quota < len(allowed):
        yield note(
            "quota",
            f"the CPU quota is {quota:g} CPUs and names none of the {len(allowed)}, so threads are "
            "not bound",
            "give whole CPUs in its place (docker run --cpuset-cpus; Kubernetes: static CPU "
            "manager, requests equal to limits)",
        )


def _rights(facts: Facts, topology: Topology) -> Iterator[Finding]:
    if facts.may_bind_threads is False:
        yield note("rights", "threads may not be bound to CPUs here", RIGHTS)
    nodes = len(topology.nodes)
    if nodes == 1:
        yield ok("numa", "one node, so memory has no choice")
    elif facts.may_bind_memory is False:
        yield note("numa", f"memory may not be bound to one of the {nodes} nodes here", RIGHTS)
    else:
        yield ok("numa", f"{nodes} {topology.kind}s, and memory may be bound to them")

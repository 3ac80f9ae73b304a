"""Which CPUs the threads of one rank run on: a pure plan, and one call that applies it.

The worker reads the topology, asks for the plan before OpenMP starts, applies it to the main thread
and hands ``ThreadPlan.cpus`` to the native library, which binds each OpenMP thread.
"""

import logging
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.runtime.topology import (
    Cpu,
    ProcessLimits,
    Topology,
    format_cpu_list,
    parse_cpu_list,
)

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

BIND_ENV = envs.OMP_THREADS_BIND.name
RESERVE_ENV = envs.NUM_OF_RESERVED_CPU.name
NODES_ENV = envs.VISIBLE_MEMORY_NODES.name

# From here on the core that runs scheduler and server costs a rank at most 1/16 of its compute, and
# they do not wait behind spinning threads; below, a core is worth more as a worker.
RESERVE_ONE_FROM_CORES = 16


@dataclass(frozen=True)
class ThreadSettings:
    """The user's wishes. ``reserved_cpus`` and ``visible_nodes`` are None where not set."""

    bind: str = "auto"
    reserved_cpus: int | None = None
    visible_nodes: tuple[int, ...] | None = None
    omp_num_threads: int | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "ThreadSettings":
        omp_text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
        return cls(
            bind=environ.get(BIND_ENV, "").strip().lower() or "auto",
            reserved_cpus=_parse_reserved(environ.get(RESERVE_ENV, "").strip()),
            visible_nodes=_parse_ids(NODES_ENV, environ.get(NODES_ENV, "")) or None,
            omp_num_threads=int(omp_text) or None if omp_text.isdecimal() else None,
        )


@dataclass(frozen=True)
class ThreadPlan:
    """Where one rank computes.

    ``cpus[i]`` is the CPU of OpenMP thread i; empty means that threads are not bound one by one.
    ``node`` is the NUMA node whose memory the rank should use, None when it spans several;
    ``node_ranks`` counts the ranks that share it. ``reason`` says why, not how many or where.
    ``process_cpus`` is the mask for the main thread and what it starts (Python helpers may use the
    SMT siblings and the reserved cores); empty leaves the mask as it is.
    """

    cpus: tuple[int, ...]
    node: int | None
    reason: str
    num_threads: int
    process_cpus: tuple[int, ...]
    node_ranks: int = 1


def plan_threads(
    topology: Topology,
    limits: ProcessLimits,
    settings: ThreadSettings,
    local_rank: int = 0,
    local_world_size: int = 1,
) -> ThreadPlan:
    """Plan for one of ``local_world_size`` ranks on this machine.

    `auto` takes one SMT sibling per physical core of the rank's NUMA node, no more threads than the
    CPU quota pays for. `nobind` takes the rank's part of all nodes' cores, or OMP_NUM_THREADS, for
    the system to place. `all` shares every allowed logical CPU evenly; lists are taken as they are.
    Reserved CPUs count per rank, in `auto` and `nobind`. Raises ConfigError if nothing fits.
    """
    if not limits.cpus:
        raise ConfigError(
            "This process may run on none of the machine's CPUs that are online:"
            " widen its affinity mask (taskset, cpuset)."
        )
    planner = _Planner(topology, limits, settings, local_world_size)
    planner.check_visible_nodes()
    if settings.bind == "auto":
        return planner.auto(local_rank)
    if settings.bind == "nobind":
        return planner.nobind()
    lists = planner.even_lists() if settings.bind == "all" else planner.given_lists()
    return planner.explicit(lists, local_rank)


def apply(plan: ThreadPlan) -> bool:
    """Restrict the calling thread, and all threads it starts, to the plan's CPUs.

    Returns whether the mask was set. Where a container or the platform forbids it, the rank still
    computes correctly, so that costs one warning and nothing else.
    """
    if not plan.process_cpus or not hasattr(os, "sched_setaffinity"):
        return False
    try:
        os.sched_setaffinity(0, plan.process_cpus)
    except OSError as error:
        logger.warning(
            f"Threads stay unbound, as the system refused CPUs {format_cpu_list(plan.process_cpus)}"
            f" ({error}): allow sched_setaffinity in the container, or set {BIND_ENV}=nobind."
        )
        return False
    return True


@dataclass(frozen=True)
class _Planner:
    """The four ways to plan, over what they all look at; ``world`` is the number of local ranks."""

    topology: Topology
    limits: ProcessLimits
    settings: ThreadSettings
    world: int

    def auto(self, rank: int) -> ThreadPlan:
        nodes = self._rank_nodes()
        index = rank * len(nodes) // self.world
        node = nodes[index]
        peers = [peer for peer in range(self.world) if peer * len(nodes) // self.world == index]
        cores = _keep_even_speed(self._allowed_cores(node))
        mine = cores[_share(len(cores), peers.index(rank), len(peers), f"core of node {node}")]

        usable = self._affordable(len(mine))
        reserved = self._reserved(usable)
        num_threads = usable - reserved
        bound = tuple(core[0].id for core in mine[:num_threads])
        notes = [f"{reserved} reserved for the rest of the server"] if reserved else []
        notes += self._idle_nodes_note()
        if usable < len(mine):
            # Every container with a quota would pick the same first cores: float over the node.
            bound = ()
            notes.append(f"not bound, as the CPU quota of {self.limits.cpu_quota:g} names no cores")
        reason = "; ".join(["auto, one thread per physical core", *notes])
        process_cpus = tuple(sorted(cpu.id for core in mine for cpu in core))
        return ThreadPlan(bound, node, reason, num_threads, process_cpus, len(peers))

    def nobind(self) -> ThreadPlan:
        num_cores = len({self.topology.by_id[cpu].core_id for cpu in self.limits.cpus})
        usable = self._affordable(max(1, num_cores // self.world))
        num_threads = self.settings.omp_num_threads or usable - self._reserved(usable)
        reason = f"{BIND_ENV}=nobind, placed by the operating system"
        home = self._home_node(self.limits.cpus)
        return ThreadPlan((), home, reason, num_threads, (), self.world)

    def explicit(self, lists: list[tuple[int, ...]], rank: int) -> ThreadPlan:
        cpus = lists[rank]
        reason = f"{BIND_ENV}={self.settings.bind}"
        if self._affordable(len(cpus)) < len(cpus):
            reason += f"; expect throttling by the CPU quota of {self.limits.cpu_quota:g}"
        homes = [self._home_node(ids) for ids in lists]
        return ThreadPlan(cpus, homes[rank], reason, len(cpus), cpus, homes.count(homes[rank]))

    def even_lists(self) -> list[tuple[int, ...]]:
        cpus = sorted((self.topology.by_id[cpu] for cpu in self.limits.cpus), key=_position)
        shares = [_share(len(cpus), r, self.world, "allowed CPU") for r in range(self.world)]
        return [tuple(cpu.id for cpu in cpus[share]) for share in shares]

    def given_lists(self) -> list[tuple[int, ...]]:
        bind = self.settings.bind
        lists = [_parse_ids(BIND_ENV, text) for text in bind.split("|")]
        if not all(lists):
            raise ConfigError(
                f"{BIND_ENV}={bind!r} has an empty CPU list: use the form 0-3|4-7, or 'auto'."
            )
        if len(lists) != self.world:
            raise ConfigError(
                f"{BIND_ENV}={bind!r} has {len(lists)} CPU list(s) but {self.world} rank(s) run on"
                " this machine: give one list per rank separated by '|', or use 'auto'."
            )
        named = frozenset(cpu for cpus in lists for cpu in cpus)
        absent = named - self.topology.by_id.keys()
        if absent or not named <= self.limits.cpus:
            wrong = format_cpu_list(absent or named - self.limits.cpus)
            cause = "do not exist or are offline" if absent else "the affinity mask or cpuset bars"
            raise ConfigError(
                f"{BIND_ENV} names CPUs {wrong}, which {cause}: choose from"
                f" {format_cpu_list(self.limits.cpus)}, or use 'auto'."
            )
        return lists

    def check_visible_nodes(self) -> None:
        visible = self.settings.visible_nodes or ()
        absent = set(visible) - {node.id for node in self.topology.nodes}
        if absent or (visible and not self._num_cores.keys() & set(visible)):
            cause = "do not exist here" if absent else "have no CPU that this process may use"
            raise ConfigError(
                f"{NODES_ENV} names NUMA nodes {format_cpu_list(absent or visible)}, which {cause}:"
                f" choose from {format_cpu_list(self._num_cores)}; with data parallelism, start no"
                " more ranks than nodes."
            )

    @cached_property
    def _num_cores(self) -> dict[int, int]:
        """Node -> allowed physical cores, of the nodes that have any."""
        counts = {node.id: len(self._allowed_cores(node.id)) for node in self.topology.nodes}
        return {node: count for node, count in counts.items() if count}

    def _rank_nodes(self) -> tuple[int, ...]:
        """The nodes that ranks live on, at most one per rank, in rank order."""
        if self.settings.visible_nodes is not None:
            visible = [node for node in self.settings.visible_nodes if node in self._num_cores]
            return tuple(visible[: self.world])
        candidates = self._num_cores.keys() & self.limits.memory_nodes or self._num_cores.keys()
        # With fewer ranks than nodes, an affinity mask may leave the first node next to nothing.
        largest = sorted(candidates, key=lambda node: (-self._num_cores[node], node))
        return tuple(sorted(largest[: self.world]))

    def _allowed_cores(self, node: int) -> list[tuple[Cpu, ...]]:
        """The node's physical cores as their allowed logical CPUs; neighbours share a cache."""
        cores: dict[int, list[Cpu]] = {}
        for cpu in self.topology.cpus:
            if cpu.numa_node == node and cpu.id in self.limits.cpus:
                cores.setdefault(cpu.core_id, []).append(cpu)
        return sorted(map(tuple, cores.values()), key=lambda core: _position(core[0]))

    def _home_node(self, cpus: Collection[int]) -> int | None:
        """The node that the user named, else the one that holds all ``cpus``, else None."""
        own = {self.topology.by_id[cpu].numa_node for cpu in cpus}
        nodes = set(self.settings.visible_nodes or own)
        return nodes.pop() if len(nodes) == 1 else None

    def _affordable(self, num_cores: int) -> int:
        """As many of ``num_cores`` as the rank's part of the CPU quota keeps running."""
        quota = self.limits.cpu_quota
        return min(num_cores, max(1, math.ceil(quota) // self.world)) if quota else num_cores

    def _reserved(self, usable: int) -> int:
        reserved = self.settings.reserved_cpus
        if reserved is None:
            return 1 if usable >= RESERVE_ONE_FROM_CORES else 0
        if reserved >= usable:
            raise ConfigError(
                f"{RESERVE_ENV}={reserved} leaves none of a rank's {usable} core(s) to compute on:"
                f" set it to at most {usable - 1}, or unset it."
            )
        return reserved

    def _idle_nodes_note(self) -> list[str]:
        size = len(self._num_cores)
        if self.settings.visible_nodes is not None or size <= self.world:
            return []
        return [f"only {self.world} of {size} NUMA nodes used, try --tensor-parallel-size {size}"]


def _keep_even_speed(cores: list[tuple[Cpu, ...]]) -> list[tuple[Cpu, ...]]:
    """Leave out cores that slow the rest down.

    Work is split evenly, so k cores go at k times the pace of the slowest one of them: the k that
    makes this largest wins. That keeps E cores at 3/4 of the clock and drops LITTLE and LP-E cores.
    """
    speeds = sorted((core[0].speed for core in cores), reverse=True)
    _, slowest = max((count * speed, speed) for count, speed in enumerate(speeds, 1))
    return [core for core in cores if core[0].speed >= slowest]


def _position(cpu: Cpu) -> tuple[int, ...]:
    return (cpu.package, cpu.numa_node, cpu.llc_group, cpu.core_id, cpu.id)


def _share(count: int, index: int, parts: int, what: str) -> slice:
    """Equal parts, since the slowest rank sets the pace; what remains is left to the system."""
    size = count // parts
    if size == 0:
        raise ConfigError(
            f"{parts} ranks cannot share {count} {what}(s): start fewer ranks on this machine"
            " (tensor, pipeline or data parallel size), or allow it more CPUs."
        )
    return slice(index * size, (index + 1) * size)


def _parse_reserved(text: str) -> int | None:
    if not text or text.isdecimal():
        return int(text) if text else None
    raise ConfigError(f"{RESERVE_ENV}={text!r} is not a number of cores: give 0 or more.")


def _parse_ids(name: str, text: str) -> tuple[int, ...]:
    try:
        return parse_cpu_list(text)
    except ValueError as error:
        also = "" if name == NODES_ENV else ", or 'auto', 'all', 'nobind'"
        raise ConfigError(f"{name} is wrong, {error}: use ids such as 0-3,8{also}.") from None

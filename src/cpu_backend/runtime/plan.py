"""Which CPUs the threads of each rank run on: pure functions of the machine and the settings.

Every process that wants to know reads the machine once (:meth:`Machine.read`) and plans all ranks;
``threads.py`` applies the plan of one.
"""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from cpu_backend import envs
from cpu_backend.errors import ConfigError
from cpu_backend.runtime import system
from cpu_backend.runtime.sysfs import format_cpu_list, parse_cpu_list
from cpu_backend.runtime.topology import (
    DECLARED_ENV,
    Cpu,
    ProcessLimits,
    Topology,
    read_limits,
    read_topology,
)

BIND_ENV = envs.OMP_THREADS_BIND.name
RESERVE_ENV = envs.NUM_OF_RESERVED_CPU.name
NODES_ENV = envs.VISIBLE_MEMORY_NODES.name

# From here on the core that runs scheduler and server costs a rank at most 1/16 of its compute, and
# they do not wait behind spinning threads; below, a core is worth more as a worker.
RESERVE_ONE_FROM_CORES = 16

# Beside another server, a rank takes the cores that are free if they are at least this part of what
# it would have alone; with fewer, both servers are better off sharing.
ENOUGH_BESIDE_OTHERS = 0.5


@dataclass(frozen=True)
class ThreadSettings:
    """The user's wishes. ``reserved_cpus`` and ``visible_nodes`` are None where not set;
    ``waits_passively``: OpenMP's threads sleep while they wait, and leave their CPU to others."""

    bind: str = "auto"
    reserved_cpus: int | None = None
    visible_nodes: tuple[int, ...] | None = None
    omp_num_threads: int | None = None
    waits_passively: bool = False

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> "ThreadSettings":
        omp_text = environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
        return cls(
            bind=environ.get(BIND_ENV, "").strip().lower() or "auto",
            reserved_cpus=_parse_reserved(environ.get(RESERVE_ENV, "").strip()),
            visible_nodes=_parse_ids(NODES_ENV, environ.get(NODES_ENV, "")) or None,
            omp_num_threads=int(omp_text) or None if omp_text.isdecimal() else None,
            waits_passively=environ.get("OMP_WAIT_POLICY", "").strip().lower() == "passive",
        )


@dataclass(frozen=True)
class ThreadPlan:
    """Where one rank computes.

    ``cpus[i]`` is the CPU of OpenMP thread i; empty means that threads are not bound one by one.
    ``node`` is the node it lives on, None when it spans several; ``memory_nodes`` are the kernel's
    nodes whose memory it should use, empty where there is no choice, and ``node_ranks`` counts the
    ranks that share that memory. ``reason`` says why, not how many or where.
    ``process_cpus`` is the mask for the main thread and what it starts (Python helpers may use the
    SMT siblings and the reserved cores); empty leaves the mask as it is.
    """

    cpus: tuple[int, ...]
    node: int | None
    reason: str
    num_threads: int
    process_cpus: tuple[int, ...]
    node_ranks: int = 1
    memory_nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Machine:
    """Where ranks are planned: the topology, what this process may use of it, and the wishes."""

    topology: Topology
    limits: ProcessLimits
    settings: ThreadSettings

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> "Machine":
        """This machine, as the calling process was started on it.

        The affinity mask is that of the first call: a server moves its own threads later on, and
        an engine that it starts after that may use all it was given.
        """
        topology = read_topology(declared=environ.get(DECLARED_ENV, ""))
        limits = read_limits(topology, affinity=_first_affinity())
        return cls(topology, limits, ThreadSettings.from_env(environ))

    def plan(self, ranks: int, taken: frozenset[int] = frozenset()) -> tuple[ThreadPlan, ...]:
        """The plans of all ranks of this machine, beside servers that compute on ``taken``.

        `auto` keeps off those CPUs where enough others are left. Raises ConfigError if nothing
        fits.
        """
        plans = self._plan(ranks, self.limits)
        computing = {cpu for plan in plans for cpu in plan.cpus}
        if not computing & taken:
            return plans
        crowded = f"CPUs {format_cpu_list(computing & taken)} are shared with another server"
        if not self.settings.waits_passively:
            crowded += ": start both with OMP_WAIT_POLICY=passive"
        free = replace(self.limits, cpus=self.limits.cpus - taken)
        if self.settings.bind == "auto" and free.cpus:
            try:
                beside = self._plan(ranks, free)
            except ConfigError:
                beside = ()
            pairs = zip(plans, beside, strict=False)
            if beside and all(
                b.num_threads >= a.num_threads * ENOUGH_BESIDE_OTHERS for a, b in pairs
            ):
                plans = beside
                crowded = f"beside another server on CPUs {format_cpu_list(taken)}"
        return tuple(replace(plan, reason=f"{plan.reason}; {crowded}") for plan in plans)

    def _plan(self, ranks: int, limits: ProcessLimits) -> tuple[ThreadPlan, ...]:
        return tuple(
            plan_threads(self.topology, limits, self.settings, rank, ranks) for rank in range(ranks)
        )


@cache
def _first_affinity() -> frozenset[int] | None:
    """A forked process inherits the answer with the rest of its memory."""
    return system.allowed_cpus()


def cpus_apart(machine: Machine, computing: Collection[int]) -> frozenset[int]:
    """Where what does not compute runs without sharing a core with compute threads, if anywhere.

    Whole cores if some are left that are no slower than those that compute; else siblings as well.
    """
    by_id = machine.topology.by_id
    busy = {by_id[cpu].core_id for cpu in computing if cpu in by_id}
    slowest = min((by_id[core].speed for core in busy), default=0)
    free = machine.limits.cpus - frozenset(computing)
    whole = (cpu for cpu in free if by_id[cpu].core_id not in busy and by_id[cpu].speed >= slowest)
    return frozenset(whole) or free


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


@dataclass(frozen=True)
class _Planner:
    """The four ways to plan, over what they all look at; ``world`` is the number of local ranks."""

    topology: Topology
    limits: ProcessLimits
    settings: ThreadSettings
    world: int

    def auto(self, rank: int) -> ThreadPlan:
        places = self._rank_places()
        place_of = [places[peer * len(places) // self.world] for peer in range(self.world)]
        place = place_of[rank]
        peers = [peer for peer in range(self.world) if place_of[peer] == place]
        cores = _keep_even_speed(self._allowed_cores(place))
        where = f"cores of {self.topology.kind} {format_cpu_list(place)}"
        mine = cores[_share(len(cores), peers.index(rank), len(peers), where)]
        if len(peers) > 1 and len({core[0].speed for core in cores}) > 1:
            # The slowest rank sets the pace: deal out fast and slow cores in turn.
            ordered = sorted(cores, key=lambda core: -core[0].speed)
            mine = ordered[peers.index(rank) :: len(peers)][: len(mine)]
        usable = self._affordable(len(mine))
        reserved = self._reserved(usable)
        num_threads = usable - reserved
        bound = tuple(core[0].id for core in mine[:num_threads])
        notes = [f"{reserved} reserved for the rest of the server"] if reserved else []
        if usable < len(mine):
            # Every container with a quota would pick the same first cores: float over the node.
            bound = ()
            notes.append(f"not bound, as the CPU quota of {self.limits.cpu_quota:g} names no cores")
        reason = "; ".join(["auto, one thread per physical core", *notes])
        process_cpus = tuple(sorted(cpu.id for core in mine for cpu in core))
        memory = self._memory(place_of, rank)
        return ThreadPlan(bound, _only(place), reason, num_threads, process_cpus, *memory)

    def nobind(self) -> ThreadPlan:
        num_cores = len({self.topology.by_id[cpu].core_id for cpu in self.limits.cpus})
        usable = self._affordable(max(1, num_cores // self.world))
        num_threads = self.settings.omp_num_threads or usable - self._reserved(usable)
        reason = f"{BIND_ENV}=nobind, placed by the operating system"
        place = self._place(self.limits.cpus)
        memory = self._memory([place] * self.world, 0)
        return ThreadPlan((), _only(place), reason, num_threads, (), *memory)

    def explicit(self, lists: list[tuple[int, ...]], rank: int) -> ThreadPlan:
        cpus = lists[rank]
        reason = f"{BIND_ENV}={self.settings.bind}"
        if self._affordable(len(cpus)) < len(cpus):
            reason += f"; expect throttling by the CPU quota of {self.limits.cpu_quota:g}"
        places = [self._place(ids) for ids in lists]
        memory = self._memory(places, rank)
        return ThreadPlan(cpus, _only(places[rank]), reason, len(cpus), cpus, *memory)

    def even_lists(self) -> list[tuple[int, ...]]:
        cpus = sorted((self.topology.by_id[cpu] for cpu in self.limits.cpus), key=_position)
        shares = [_share(len(cpus), r, self.world, "allowed CPUs") for r in range(self.world)]
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
                f"{NODES_ENV} names {self.topology.kind}s {format_cpu_list(absent or visible)},"
                f" which {cause}:"
                f" choose from {format_cpu_list(self._num_cores)}; with data parallelism, start no"
                " more ranks than nodes."
            )

    @cached_property
    def _num_cores(self) -> dict[int, int]:
        """Node -> allowed physical cores, of the nodes that have any."""
        counts = {node.id: len(self._allowed_cores((node.id,))) for node in self.topology.nodes}
        return {node: count for node, count in counts.items() if count}

    def _rank_places(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that ranks live on, at most one place per rank, in rank order.

        A place is one node. Only books, whose memory is shared, are joined for fewer ranks.
        """
        if self.settings.visible_nodes is not None:
            visible = [node for node in self.settings.visible_nodes if node in self._num_cores]
            return tuple((node,) for node in visible[: self.world])
        usable = self._num_cores.keys() & self.limits.memory_nodes or self._num_cores.keys()
        if self.topology.kind == "book" and len(usable) > self.world:
            return (tuple(sorted(usable)),)
        # With fewer ranks than nodes, an affinity mask may leave the first node next to nothing.
        largest = sorted(usable, key=lambda node: (-self._num_cores[node], node))
        return tuple((node,) for node in sorted(largest[: self.world]))

    def _allowed_cores(self, place: tuple[int, ...]) -> list[tuple[Cpu, ...]]:
        """The place's physical cores as their allowed logical CPUs; neighbours share a cache."""
        cores: dict[int, list[Cpu]] = {}
        for cpu in self.topology.cpus:
            if cpu.numa_node in place and cpu.id in self.limits.cpus:
                cores.setdefault(cpu.core_id, []).append(cpu)
        return sorted(map(tuple, cores.values()), key=lambda core: _position(core[0]))

    def _place(self, cpus: Collection[int]) -> tuple[int, ...]:
        """The nodes that the user named, else those that hold ``cpus``."""
        own = {self.topology.by_id[cpu].numa_node for cpu in cpus}
        return tuple(sorted(set(self.settings.visible_nodes or own)))

    def _memory(self, places: list[tuple[int, ...]], rank: int) -> tuple[int, tuple[int, ...]]:
        """How many ranks, which live in ``places``, share the memory of this one, and the kernel's
        nodes that have it, of those that the cpuset allows; none where they are all there are."""
        every = frozenset(self.topology.homes)
        homes_of = {node.id: frozenset(node.homes) or every for node in self.topology.nodes}
        allowed = self.limits.memory_nodes
        homes = [
            {home for node in allowed.intersection(place) or allowed for home in homes_of[node]}
            for place in places
        ]
        mine = homes[rank]
        sharing = sum(mine == other or not mine.isdisjoint(other) for other in homes)
        return sharing, tuple(sorted(mine)) if mine < every else ()

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


def _keep_even_speed(cores: list[tuple[Cpu, ...]]) -> list[tuple[Cpu, ...]]:
    """Leave out cores that slow the rest down.

    Work is split evenly, so k cores go at k times the pace of the slowest one of them: the k that
    makes this largest wins. That keeps E cores at 3/4 of the clock and drops LITTLE and LP-E cores.
    """
    speeds = sorted((core[0].speed for core in cores), reverse=True)
    _, slowest = max((count * speed, speed) for count, speed in enumerate(speeds, 1))
    return [core for core in cores if core[0].speed >= slowest]


def _only(place: tuple[int, ...]) -> int | None:
    """Its node if it is one."""
    return place[0] if len(place) == 1 else None


def _position(cpu: Cpu) -> tuple[int, ...]:
    return (*cpu.book, cpu.package, cpu.numa_node, cpu.llc_group, cpu.core_id, cpu.id)


def _share(count: int, index: int, parts: int, what: str) -> slice:
    """Equal parts, since the slowest rank sets the pace; what remains is left to the system."""
    size = count // parts
    if size == 0:
        raise ConfigError(
            f"{parts} ranks cannot share what is there ({what}: {count}): start fewer ranks on this"
            " machine (tensor, pipeline or data parallel size), or allow it more CPUs."
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

"""The ranks of a server on this machine, the plan of all of them as text, and better layouts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cpu_backend.runtime.plan import Machine, ThreadPlan, cpus_apart
from cpu_backend.runtime.sysfs import format_cpu_list


@dataclass(frozen=True)
class Layout:
    """Ranks on this machine: ``data`` replicas of ``pipeline`` stages of ``tensor`` ranks."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1

    @classmethod
    def of(cls, parallel_config: Any) -> "Layout":
        """What the host's configuration starts on this machine."""
        local = parallel_config.local_world_size
        tensor = min(parallel_config.tensor_parallel_size, local)
        replicas = parallel_config.data_parallel_size_local
        if (parallel_config.data_parallel_rank_local or 0) >= replicas:
            replicas = parallel_config.data_parallel_size  # a process per replica, started by hand
        return cls(tensor, local // tensor, max(1, replicas))

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def name(self, index: int) -> str:
        """``"dp 0 tp 1"``: the rank planned at ``index``; ranks of one tp group are neighbours."""
        names = []
        for part, size, stride in (
            ("dp", self.data, self.tensor * self.pipeline),
            ("pp", self.pipeline, self.tensor),
            ("tp", self.tensor, 1),
        ):
            if size > 1:
                names.append(f"{part} {index // stride % size}")
        return " ".join(names)


def describe(machine: Machine, layout: Layout, taken: frozenset[int] = frozenset()) -> list[str]:
    """The machine, what may be used of it, where each rank goes, and what would be better."""
    plans = machine.plan(layout.ranks, taken)
    lines = [f"machine  {_machine(machine)}", f"allowed  {_allowed(machine)}"]
    if taken:
        lines.append(f"taken    CPUs {format_cpu_list(taken)} by other servers")
    for index, plan in enumerate(plans):
        lines.append(f"rank {index:<3} {_rank(machine, plan, layout.name(index))}")
    lines.append(f"others   {_others(machine, plans, taken)}")
    if advice := advise(machine, layout, plans, taken):
        lines.append(f"advice   {advice}")
    return lines


def advise(
    machine: Machine,
    layout: Layout,
    plans: Sequence[ThreadPlan],
    taken: frozenset[int] = frozenset(),
    *,
    fits: Callable[[int], bool] = lambda size: True,
    command: str = "",
) -> str:
    """One sentence when nodes of the machine stay idle that another layout would use, else "".

    ``fits``: whether the model can be cut for this tensor-parallel size.
    ``command``: the server's command line without its layout.
    """
    topology, settings = machine.topology, machine.settings
    free = machine.limits.cpus - taken
    nodes = sum(any(cpu in free for cpu in node.cpus) for node in topology.nodes)
    used = len({plan.node for plan in plans})
    if settings.bind != "auto" or settings.visible_nodes is not None or nodes <= used:
        return ""
    if any(plan.node is None for plan in plans) or machine.limits.cpu_quota is not None:
        return ""
    per_replica = layout.tensor * layout.pipeline
    choices = []
    sizes = range(nodes // (layout.pipeline * layout.data), layout.tensor, -1)
    if size := next(filter(fits, sizes), 0):
        wider = Layout(size, layout.pipeline, layout.data)
        choices.append(f"`{_options(wider, command)}` answers each request faster")
    if nodes // per_replica > layout.data:
        more = Layout(layout.tensor, layout.pipeline, nodes // per_replica)
        choices.append(
            f"`{_options(more, command)}` serves more requests at once, with the weights in memory"
            f" {more.data} times"
        )
    if not choices:
        return ""
    return f"{nodes - used} of {nodes} {topology.kind}s stay idle: {'; '.join(choices)}."


def _options(layout: Layout, command: str) -> str:
    parts = [("-tp", layout.tensor), ("-pp", layout.pipeline), ("-dp", layout.data)]
    return " ".join(filter(None, [command, *(f"{name} {n}" for name, n in parts if n > 1)]))


def _machine(machine: Machine) -> str:
    topology = machine.topology
    books, caches = (len({getattr(c, f) for c in topology.cpus}) for f in ("book", "llc_group"))
    speeds = {cpu.speed for cpu in topology.cpus}
    parts = [_count(len({(c.book, c.package) for c in topology.cpus}), "package")]
    if books > 1:
        parts.append(_count(books, "book"))
    with_cpus = sum(bool(node.cpus) for node in topology.nodes)
    if topology.kind != "book":
        parts.append(_count(with_cpus, topology.kind))
    if without := len(topology.nodes) - with_cpus:
        parts.append(f"{without} without CPUs")
    parts += [
        _count(caches, "last-level cache"),
        _count(len(topology.smt_siblings), "core"),
        _count(len(topology.cpus), "CPU"),
    ]
    if len(speeds) > 1:
        parts.append(f"{len(speeds)} speeds of core")
    return ", ".join(parts)


def _allowed(machine: Machine) -> str:
    limits, nodes = machine.limits, {node.id for node in machine.topology.nodes}
    parts = [f"CPUs {format_cpu_list(limits.cpus)}"]
    if limits.memory_nodes != nodes:
        parts.append(f"memory of nodes {format_cpu_list(limits.memory_nodes)}")
    if limits.cpu_quota is not None:
        parts.append(f"a quota of {limits.cpu_quota:g} CPUs")
    return ", ".join(parts)


def _rank(machine: Machine, plan: ThreadPlan, name: str) -> str:
    where = f"on CPUs {format_cpu_list(plan.cpus)}" if plan.cpus else "unbound"
    if not plan.cpus and plan.process_cpus:
        where = f"floating over CPUs {format_cpu_list(plan.process_cpus)}"
    node = "" if plan.node is None else f", {machine.topology.kind} {plan.node}"
    homes = plan.memory_nodes
    memory = f", memory of node{'s' * (len(homes) > 1)} {format_cpu_list(homes)}" if homes else ""
    threads = _count(plan.num_threads, "thread")
    return f"{name + ': ' if name else ''}{threads} {where}{node}{memory}; {plan.reason}"


def _others(machine: Machine, plans: Sequence[ThreadPlan], taken: frozenset[int]) -> str:
    computing = taken.union(*(plan.cpus for plan in plans))
    bound = all(plan.cpus for plan in plans)
    apart = cpus_apart(machine, computing) if bound else frozenset()
    if apart:
        return f"HTTP, tokenizers and all that does not compute: CPUs {format_cpu_list(apart)}"
    return "HTTP, tokenizers and all that does not compute share the ranks' CPUs"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

"""Machines as data: one JSON file each in ``machines/``, beside the plans expected for them.

A file lists clusters of cores (with the CPU numbers that the kernel gives them), nodes that have
memory alone, the limits of the process, the command lines to plan and the model to size the KV
cache for.  ``<name>.txt`` is what these commands print, and the sizes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.runtime.layout import Layout, describe
from cpu_backend.runtime.memory import (
    GIB,
    MemoryStatus,
    largest_step_bytes,
    plan_kv_bytes,
    read_memory_status,
)
from cpu_backend.runtime.plan import Machine, ThreadPlan, ThreadSettings
from cpu_backend.runtime.sysfs import format_cpu_list, parse_cpu_list
from cpu_backend.runtime.topology import read_limits, read_topology
from tests.plugin.fake_sysfs import FakeCpu, FakeMachine, write_machine

FOLDER = Path(__file__).parent / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
SIZES = {"-tp": "tensor", "-pp": "pipeline", "-dp": "data"}
PROGRAM_BYTES = int(0.46 * GIB)  # of an engine's process before the model is made


@dataclass(frozen=True)
class Model:
    """A dense decoder in bf16, by its config.json; ``weights`` is its number of parameters."""

    weights: int
    layers: int
    hidden: int
    intermediate: int
    kv_heads: int
    head_dim: int
    max_len: int

    def kv_cache(self, status: MemoryStatus, layout: Layout) -> str:
        """The sentence of one rank's log, of a server with the host's defaults.

        status: its share of the memory before it loads anything.
        """
        if self.kv_heads % layout.tensor:
            return f"{self.kv_heads} KV heads cannot be cut into {layout.tensor} parts"
        ranks = layout.tensor * layout.pipeline
        used = 2 * self.weights // ranks + PROGRAM_BYTES
        left = MemoryStatus(status.total, max(0, status.available - used), status.limited_by)
        token = 2 * 2 * self.head_dim * self.kv_heads * self.layers // ranks
        widest = self.intermediate // layout.tensor
        try:
            return plan_kv_bytes(
                None,
                left,
                useful_bytes=128 * ranks * self.max_len * token,
                step_bytes=largest_step_bytes(2048 * ranks, self.hidden, widest, 2),
            ).explanation
        except ConfigError as error:
            return f"error: {error}"


MODELS = {
    "SmolLM2-135M": Model(134_515_008, 30, 576, 1536, 3, 64, 8192),
    "Llama-3.1-8B": Model(8_030_261_248, 32, 4096, 14336, 8, 128, 131072),
}


@dataclass(frozen=True)
class Recorded:
    """One machine, written to disk as its kernel would show it."""

    name: str
    about: str
    model: str
    commands: list[dict[str, Any]]
    tree: FakeMachine
    affinity: tuple[int, ...] | None

    @classmethod
    def load(cls, name: str, root: Path) -> Recorded:
        data = json.loads((FOLDER / f"{name}.json").read_text())
        cpus = [cpu for cluster in data["clusters"] for cpu in _cluster(cluster)]
        tree = write_machine(
            root,
            sorted(cpus, key=lambda cpu: cpu.id),
            node_gib=data.get("node_gib", 64),
            numa_files=data.get("numa_files", True),
            near=data.get("near", 12),
            memory_only={int(node): gib for node, gib in data.get("memory_only", {}).items()},
        )
        if "cgroup" in data:
            tree.write_cgroup(data["cgroup"]["self"], data["cgroup"]["files"])
        affinity = parse_cpu_list(data["affinity"]) if "affinity" in data else None
        return cls(name, data["about"], data["model"], data["commands"], tree, affinity)

    def machine(self, environ: dict[str, str]) -> Machine:
        declared = environ.get("CPU_BACKEND_NUMA", "")
        topology = read_topology(self.tree.sysfs, self.tree.procfs, declared)
        mask = topology.by_id if self.affinity is None else self.affinity
        limits = read_limits(topology, self.tree.sysfs, self.tree.procfs, mask)
        return Machine(topology, limits, ThreadSettings.from_env(environ))

    def plans(self) -> str:
        """What all commands print, each after its line."""
        text = [f"# {self.about}"]
        for command in self.commands:
            environ = command.get("environ", {})
            taken = frozenset(parse_cpu_list(command.get("taken", "")))
            words = [*(f"{k}='{v}'" for k, v in environ.items()), "info --plan"]
            text.append(f"\n$ {' '.join([*words, command.get('options', '')]).strip()}")
            layout = _layout(command.get("options", ""))
            try:
                machine = self.machine(environ)
                text += describe(machine, layout, taken)
            except ConfigError as error:
                text.append(f"error: {error}")
            else:
                text += self._memory(machine.plan(layout.ranks, taken), layout)
        return "\n".join(text) + "\n"

    def status(self, plan: ThreadPlan, ranks: int) -> MemoryStatus:
        """What the rank's worker reads."""
        return read_memory_status(
            plan.memory_nodes,
            self.tree.sysfs,
            self.tree.procfs,
            local_ranks=ranks,
            node_ranks=plan.node_ranks,
        )

    def _memory(self, plans: Sequence[ThreadPlan], layout: Layout) -> list[str]:
        """What ranks log of their KV caches, those together that log the same."""
        said: dict[str, list[int]] = {}
        for rank, plan in enumerate(plans):
            status = self.status(plan, layout.ranks)
            said.setdefault(MODELS[self.model].kv_cache(status, layout), []).append(rank)
        return [
            f"memory   rank {format_cpu_list(ranks)}, {self.model} in bf16: {text}"
            for text, ranks in said.items()
        ]


def _layout(options: str) -> Layout:
    words = options.split()
    sizes = dict(zip(words[::2], map(int, words[1::2]), strict=True))
    return Layout(**{SIZES[option]: size for option, size in sizes.items()})


def _cluster(cluster: dict[str, Any]) -> list[FakeCpu]:
    """Cores ``cores`` (and their siblings, in the same order), ``llc_cores`` to a cache."""
    cores = parse_cpu_list(cluster["cores"])
    siblings = parse_cpu_list(cluster.get("siblings", ""))
    assert len(siblings) in (0, len(cores))
    per_cache = cluster.get("llc_cores", len(cores))
    cpus = []
    for index, core in enumerate(cores):
        cache = cluster.get("llc", cores[index - index % per_cache])
        place = (core, cluster["node"], cluster["package"], cache, cluster.get("khz", 0))
        cpus += [
            FakeCpu(cpu, *place, book=cluster.get("book"))
            for cpu in (core, *siblings[index : index + 1])
        ]
    return cpus


if __name__ == "__main__":  # writes what test_plans_are_the_recorded_ones expects; read the diff
    import tempfile

    for machine_name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            text = Recorded.load(machine_name, Path(folder)).plans()
        (FOLDER / f"{machine_name}.txt").write_text(text)

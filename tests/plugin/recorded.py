"""Machines as data: one JSON file each in ``machines/``, beside the plans expected for them.

A file lists clusters of cores (with the CPU numbers that the kernel gives them), the limits of the
process, and the command lines to plan.  ``<name>.txt`` is what these commands print.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_backend.errors import ConfigError
from cpu_backend.runtime.layout import Layout, describe
from cpu_backend.runtime.plan import Machine, ThreadSettings
from cpu_backend.runtime.sysfs import parse_cpu_list
from cpu_backend.runtime.topology import read_limits, read_topology
from tests.plugin.fake_sysfs import FakeCpu, FakeMachine, write_machine

FOLDER = Path(__file__).parent / "machines"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
SIZES = {"-tp": "tensor", "-pp": "pipeline", "-dp": "data"}


@dataclass(frozen=True)
class Recorded:
    """One machine, written to disk as its kernel would show it."""

    name: str
    about: str
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
        )
        if "cgroup" in data:
            tree.write_cgroup(data["cgroup"]["self"], data["cgroup"]["files"])
        affinity = parse_cpu_list(data["affinity"]) if "affinity" in data else None
        return cls(name, data["about"], data["commands"], tree, affinity)

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
            try:
                text += describe(self.machine(environ), _layout(command.get("options", "")), taken)
            except ConfigError as error:
                text.append(f"error: {error}")
        return "\n".join(text) + "\n"


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

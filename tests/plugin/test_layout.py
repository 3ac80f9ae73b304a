"""Plans of whole servers on recorded machines, and the advice that goes with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.runtime.layout import Layout, advise
from cpu_backend.runtime.memory import GIB, read_memory_status
from cpu_backend.runtime.plan import BIND_ENV, Machine, ThreadSettings, cpus_apart
from cpu_backend.runtime.topology import DECLARED_ENV, read_topology
from tests.plugin.fake_sysfs import FakeCpu, epyc_nps4, graviton, write_machine, xeon_snc4
from tests.plugin.recorded import FOLDER, NAMES, Recorded


def machine_of(root: Path, cpus: list[FakeCpu], **environ: str) -> Machine:
    tree = write_machine(root, cpus)
    topology = read_topology(tree.sysfs, tree.procfs, environ.get("CPU_BACKEND_NUMA", ""))
    return Machine(topology, tree.limits(topology=topology), ThreadSettings.from_env(environ))


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_the_recorded_ones(name: str, tmp_path: Path) -> None:
    """``python recorded.py`` writes them anew, for the difference to be read."""
    assert Recorded.load(name, tmp_path).plans() == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_no_cpu_computes_for_two_ranks(name: str, tmp_path: Path) -> None:
    recorded = Recorded.load(name, tmp_path)
    machine = recorded.machine({})
    for ranks in range(1, 9):
        try:
            plans = machine.plan(ranks)
        except ConfigError:  # fewer cores than ranks
            continue
        cpus = [cpu for plan in plans for cpu in plan.cpus]
        assert len(cpus) == len(set(cpus))
        assert set(cpus) <= machine.limits.cpus
        assert len({plan.num_threads for plan in plans}) <= 2


@pytest.mark.parametrize("name", ["grace_hopper_gh200", "grace_blackwell_gb200"])
@pytest.mark.parametrize("bind", ["auto", "nobind", "all"])
@pytest.mark.parametrize("declared", ["", "0-35|36-71"])
def test_memory_is_planned_on_nodes_with_cpus_alone(
    name: str, bind: str, declared: str, tmp_path: Path
) -> None:
    recorded = Recorded.load(name, tmp_path)
    nodes = read_topology(recorded.tree.sysfs, recorded.tree.procfs).nodes
    with_cpus = {node.id for node in nodes if node.cpus}
    assert len(with_cpus) < len(nodes)
    machine = recorded.machine({BIND_ENV: bind, DECLARED_ENV: declared})
    for ranks in (1, 2):
        for plan in machine.plan(ranks):
            assert plan.memory_nodes  # else the system takes what is left anywhere
            assert set(plan.memory_nodes) <= with_cpus
            share = len(plan.memory_nodes) * 480 * GIB // plan.node_ranks
            assert recorded.status(plan, ranks).total <= share
    whole = read_memory_status((), recorded.tree.sysfs, recorded.tree.procfs)
    assert whole.total == len(with_cpus) * 480 * GIB
    assert whole.available == whole.total * 3 // 4


def test_every_needed_machine_is_recorded() -> None:
    assert {"xeon_8480_snc4", "epyc_9654_nps1", "epyc_7763_nps2", "epyc_7713_nps4"} <= set(NAMES)
    assert {"graviton3", "core_ultra_155h", "container_quota_3", "z16_two_books"} <= set(NAMES)
    assert {"vm_without_numa_files", "grace_72", "grace_hopper_gh200"} <= set(NAMES)


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (Layout(), [""]),
        (Layout(tensor=2), ["tp 0", "tp 1"]),
        (Layout(2, 1, 2), ["dp 0 tp 0", "dp 0 tp 1", "dp 1 tp 0", "dp 1 tp 1"]),
        (Layout(1, 2, 2), ["dp 0 pp 0", "dp 0 pp 1", "dp 1 pp 0", "dp 1 pp 1"]),
    ],
)
def test_ranks_have_names(layout: Layout, names: list[str]) -> None:
    assert [layout.name(rank) for rank in range(layout.ranks)] == names


def test_declared_nodes_are_planned_like_real_ones(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, graviton(8), CPU_BACKEND_NUMA="0-2|4-7")
    plans = machine.plan(2)
    assert [plan.cpus for plan in plans] == [(0, 1, 2), (4, 5, 6, 7)]
    assert [plan.node for plan in plans] == [0, 1]
    assert [plan.memory_nodes for plan in plans] == [(), ()]
    assert 3 not in machine.limits.cpus
    one = machine_of(
        tmp_path, graviton(8), CPU_BACKEND_NUMA="0-2|4-7", CPU_VISIBLE_MEMORY_NODES="1"
    )
    assert one.plan(1)[0].cpus == (4, 5, 6, 7)


def test_declared_nodes_know_the_real_memory_below_them(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, epyc_nps4(), CPU_BACKEND_NUMA="0-7|8-15|16-47")
    plans = machine.plan(3)
    assert [plan.memory_nodes for plan in plans] == [(0,), (0,), (1, 2)]
    assert [plan.node_ranks for plan in plans] == [2, 2, 1]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ("0-3|", "leaves a node without CPUs"),
        ("0-3|3-7", "names a CPU twice"),
        ("0-3|4-9", "names CPUs 8-9, which do not exist"),
        ("0-3|x", "'x' is neither"),
    ],
)
def test_wrong_declaration_is_named(tmp_path: Path, declared: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        machine_of(tmp_path, graviton(8), CPU_BACKEND_NUMA=declared)
    assert str(caught.value).startswith("CPU_BACKEND_NUMA")
    assert str(caught.value).endswith(".")


def test_second_server_takes_the_free_node(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, xeon_snc4())
    [first] = machine.plan(1)
    [second] = machine.plan(1, frozenset(first.process_cpus))
    assert second.node == 1
    assert "beside another server on CPUs 0-14,120-134" in second.reason


def test_second_server_takes_the_other_half_of_a_node(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, graviton(8))
    [second] = machine.plan(1, frozenset(range(4)))
    assert second.cpus == (4, 5, 6, 7)


@pytest.mark.parametrize("policy", ["", "active", "PASSIVE"])
def test_servers_share_where_little_is_left(tmp_path: Path, policy: str) -> None:
    machine = machine_of(tmp_path, graviton(8), OMP_WAIT_POLICY=policy)
    [second] = machine.plan(1, frozenset(range(5)))
    assert second.cpus == tuple(range(8))
    assert "CPUs 0-4 are shared with another server" in second.reason
    advised = "start both with OMP_WAIT_POLICY=passive" in second.reason
    assert advised == (policy != "PASSIVE")


def test_lists_by_hand_are_kept_beside_others_and_say_so(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, graviton(8), VLLM_CPU_OMP_THREADS_BIND="0-3")
    [plan] = machine.plan(1, frozenset({3, 4}))
    assert plan.cpus == (0, 1, 2, 3)
    assert "CPUs 3 are shared" in plan.reason


def test_cpus_apart_are_whole_cores_first_then_siblings(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, xeon_snc4(1, 2))  # 8 cores, siblings 8-15
    assert cpus_apart(machine, {0, 1, 2, 3, 4, 5}) == {6, 7, 14, 15}
    assert cpus_apart(machine, set(range(8))) == set(range(8, 16))
    assert cpus_apart(machine, set(range(16))) == frozenset()


def test_advice_names_layouts_that_the_model_allows(tmp_path: Path) -> None:
    machine = machine_of(tmp_path, xeon_snc4())

    def advice(layout: Layout, **options: object) -> str:
        return advise(machine, layout, machine.plan(layout.ranks), **options)  # type: ignore[arg-type]

    text = advice(Layout(), command="vllm serve m", fits=lambda size: 6 % size == 0)
    assert text.startswith("7 of 8 NUMA nodes stay idle: `vllm serve m -tp 6` answers")
    assert "`vllm serve m -dp 8` serves more" in text
    assert "`-tp 2 -dp 4`" in advice(Layout(tensor=2))
    assert "answers" not in advice(Layout(), fits=lambda size: False)
    assert advice(Layout(tensor=8)) == ""
    assert advice(Layout(data=8)) == ""


@pytest.mark.parametrize(
    "environ",
    [
        {"CPU_VISIBLE_MEMORY_NODES": "0"},
        {"VLLM_CPU_OMP_THREADS_BIND": "0-3"},
        {"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    ],
)
def test_who_chose_by_hand_gets_no_advice(tmp_path: Path, environ: dict[str, str]) -> None:
    machine = machine_of(tmp_path, xeon_snc4(), **environ)
    assert advise(machine, Layout(), machine.plan(1)) == ""


def test_command_prints_the_plan_of_this_machine() -> None:
    command = [sys.executable, "-m", "cpu_backend.info", "--plan", "-dp", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for word in ("machine  ", "allowed  CPUs ", "rank 0  ", "others   "):
        assert any(line.startswith(word) for line in done.stdout.splitlines()), done.stdout

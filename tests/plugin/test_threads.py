"""Thread plans on recorded machines: each test names the exact CPUs it expects."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.runtime import threads
from cpu_backend.runtime.plan import ThreadPlan, ThreadSettings, plan_threads
from tests.plugin.fake_sysfs import (
    FakeCpu,
    FakeMachine,
    epyc_nps4,
    graviton,
    hybrid_laptop,
    write_machine,
    xeon_snc4,
)


def plans(
    machine: FakeMachine,
    world: int,
    *,
    affinity: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[ThreadPlan]:
    """The plan of every rank."""
    topology = machine.topology()
    limits = machine.limits(affinity, topology)
    settings = ThreadSettings.from_env(env or {})
    return [plan_threads(topology, limits, settings, rank, world) for rank in range(world)]


def plan(
    machine: FakeMachine,
    *,
    affinity: Sequence[int] | None = None,
    env: Mapping[str, str] | None = None,
) -> ThreadPlan:
    """The plan of an only rank."""
    return plans(machine, 1, affinity=affinity, env=env)[0]


def bind(text: str) -> dict[str, str]:
    return {"VLLM_CPU_OMP_THREADS_BIND": text}


def span(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


@pytest.fixture
def xeon(tmp_path: Path) -> FakeMachine:
    """Eight nodes of 15 cores; the second siblings are CPUs 120-239."""
    return write_machine(tmp_path, xeon_snc4())


@pytest.fixture
def epyc(tmp_path: Path) -> FakeMachine:
    """Four nodes of 16 cores."""
    return write_machine(tmp_path, epyc_nps4())


@pytest.fixture
def arm(tmp_path: Path) -> FakeMachine:
    """One node of 64 cores."""
    return write_machine(tmp_path, graviton())


def with_quota(machine: FakeMachine, quota: str) -> FakeMachine:
    machine.write_cgroup("0::/", {"cpu.max": quota})
    return machine


def test_auto_takes_one_sibling_of_one_node(xeon: FakeMachine) -> None:
    result = plan(xeon)
    assert result.cpus == span(0, 14)
    assert (result.node, result.num_threads, result.node_ranks) == (0, 15, 1)
    assert result.process_cpus == span(0, 14) + span(120, 134)


def test_auto_gives_each_rank_its_node(xeon: FakeMachine) -> None:
    ranks = plans(xeon, 8)
    assert [p.cpus for p in ranks] == [span(15 * n, 15 * n + 14) for n in range(8)]
    assert [p.node for p in ranks] == list(range(8))


def test_auto_with_fewer_ranks_than_nodes_takes_the_first(xeon: FakeMachine) -> None:
    assert [p.node for p in plans(xeon, 2)] == [0, 1]


def test_more_ranks_than_nodes_split_the_cores_evenly(xeon: FakeMachine) -> None:
    ranks = plans(xeon, 16)
    assert ranks[0].cpus == span(0, 6)
    assert ranks[1].cpus == span(7, 13)
    assert ranks[15].cpus == span(112, 118)
    assert ranks[1].process_cpus == span(7, 13) + span(127, 133)
    assert {p.node_ranks for p in ranks} == {2}


def test_uneven_ranks_over_nodes(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, [FakeCpu(i, i, i // 4, llc=i // 4) for i in range(8)])
    ranks = plans(machine, 3)
    assert [p.cpus for p in ranks] == [(0, 1), (2, 3), (4, 5, 6, 7)]
    assert [p.node_ranks for p in ranks] == [2, 2, 1]


def test_sixteen_cores_reserve_one_and_fifteen_none(epyc: FakeMachine) -> None:
    result = plans(epyc, 4)[1]
    assert result.cpus == span(16, 30)
    assert result.process_cpus == span(16, 31)
    assert "1 reserved" in result.reason
    assert plan(epyc, affinity=span(16, 30)).cpus == span(16, 30)


@pytest.mark.parametrize(("reserved", "last"), [("0", 15), ("1", 14), ("5", 10), ("15", 0)])
def test_reserved_cpus_are_taken_from_the_end(epyc: FakeMachine, reserved: str, last: int) -> None:
    assert plan(epyc, env={"VLLM_CPU_NUM_OF_RESERVED_CPU": reserved}).cpus == span(0, last)


def test_single_node_server_uses_all_but_one(arm: FakeMachine) -> None:
    result = plan(arm)
    assert (result.cpus, result.node) == (span(0, 62), 0)
    assert [p.cpus for p in plans(arm, 2)] == [span(0, 30), span(32, 62)]


def test_two_cores_both_compute(tmp_path: Path) -> None:
    assert plan(write_machine(tmp_path, graviton(2))).cpus == (0, 1)


def test_hybrid_laptop_keeps_e_cores_and_drops_low_power_ones(tmp_path: Path) -> None:
    result = plan(write_machine(tmp_path, hybrid_laptop()))
    assert result.cpus == (0, 2, 4, 6, 8, 10, *span(12, 19))
    assert result.process_cpus == span(0, 19)


def test_little_cores_are_dropped(tmp_path: Path) -> None:
    cpus = [FakeCpu(i, i, khz=1_800_000 if i < 4 else 2_400_000) for i in range(8)]
    assert plan(write_machine(tmp_path / "near", cpus)).cpus == span(0, 7)
    cpus = [FakeCpu(i, i, khz=900_000 if i < 4 else 2_400_000) for i in range(8)]
    assert plan(write_machine(tmp_path / "far", cpus)).cpus == span(4, 7)


def test_affinity_mask_decides_sibling_and_node(xeon: FakeMachine) -> None:
    result = plan(xeon, affinity=[3, 123, 140, 141, 142])
    assert (result.cpus, result.node) == ((140, 141, 142), 1)
    mask = [3, 4, *range(15, 20), *range(30, 37)]
    assert [p.cpus for p in plans(xeon, 2, affinity=mask)] == [span(15, 19), span(30, 36)]
    result = plan(xeon, affinity=[3, 123, 124])
    assert (result.cpus, result.process_cpus) == ((3, 124), (3, 123, 124))


def test_memory_nodes_of_the_cpuset_are_preferred(xeon: FakeMachine) -> None:
    xeon.write_cgroup("0::/", {"cpuset.mems.effective": "5"})
    assert plan(xeon).node == 5


def test_quota_limits_threads_and_leaves_them_floating(arm: FakeMachine) -> None:
    result = plan(with_quota(arm, "300000 100000"))
    assert (result.num_threads, result.cpus) == (3, ())
    assert result.process_cpus == span(0, 63)
    assert "quota of 3 " in result.reason
    assert plan(with_quota(arm, "250000 100000")).num_threads == 3
    assert plan(with_quota(arm, "20000 100000")).num_threads == 1


def test_quota_is_shared_by_ranks_and_reserves_from_itself(arm: FakeMachine) -> None:
    machine = with_quota(arm, "800000 100000")
    assert [p.num_threads for p in plans(machine, 2)] == [4, 4]
    assert plan(machine, env={"VLLM_CPU_NUM_OF_RESERVED_CPU": "2"}).num_threads == 6


def test_quota_as_large_as_the_cpuset_still_binds(arm: FakeMachine) -> None:
    result = plan(with_quota(arm, "400000 100000"), affinity=span(8, 11))
    assert result.cpus == span(8, 11)


def test_visible_memory_nodes_choose_and_order(xeon: FakeMachine) -> None:
    assert plan(xeon, env={"CPU_VISIBLE_MEMORY_NODES": "3"}).cpus == span(45, 59)
    assert [p.node for p in plans(xeon, 2, env={"CPU_VISIBLE_MEMORY_NODES": "6,2"})] == [
        6,
        2,
    ]


def test_no_numa_or_topology_files_still_plan(tmp_path: Path) -> None:
    cpus = graviton(4)
    bare = write_machine(tmp_path, cpus, numa_files=False, topology_files=False)
    assert plan(bare).cpus == (0, 1, 2, 3)


def test_nobind_counts_cores_but_binds_nothing(xeon: FakeMachine) -> None:
    result = plan(xeon, env=bind("nobind"))
    assert (result.cpus, result.process_cpus, result.node) == ((), (), None)
    assert (result.num_threads, result.memory_nodes) == (119, ())
    assert {(p.num_threads, p.node_ranks) for p in plans(xeon, 8, env=bind("nobind"))} == {(15, 8)}
    assert plan(xeon, env={**bind("nobind"), "OMP_NUM_THREADS": "7"}).num_threads == 7
    assert plan(with_quota(xeon, "300000 100000"), env=bind("nobind")).num_threads == 3
    assert plan(xeon, env={**bind("nobind"), "CPU_VISIBLE_MEMORY_NODES": "2"}).node == 2


def test_all_takes_every_logical_cpu(xeon: FakeMachine) -> None:
    assert sorted(plan(xeon, env=bind("all")).cpus) == list(range(240))
    result = plans(xeon, 8, env=bind("ALL "))[7]
    assert set(result.cpus) == {*span(105, 119), *span(225, 239)}
    assert result.node == 7


def test_lists_are_taken_in_the_order_given(xeon: FakeMachine) -> None:
    result = plan(xeon, env=bind("8,0-3"))
    assert (result.cpus, result.node) == ((8, 0, 1, 2, 3), 0)
    assert result.process_cpus == result.cpus
    assert plan(xeon, env=bind("0,15")).node is None


def test_ranks_of_the_only_node_share_its_memory(arm: FakeMachine) -> None:
    assert {(p.node_ranks, p.memory_nodes) for p in plans(arm, 2)} == {(2, ())}


def test_lists_take_the_memory_of_the_nodes_that_they_span(xeon: FakeMachine) -> None:
    assert plan(xeon, env=bind("0,15")).memory_nodes == (0, 1)
    assert plan(xeon, env=bind("0-119")).memory_nodes == ()  # all there is
    ranks = plans(xeon, 3, env=bind("0-29|30-44|15"))
    assert [p.memory_nodes for p in ranks] == [(0, 1), (2,), (1,)]
    assert [p.node_ranks for p in ranks] == [2, 1, 2]
    visible = {**bind("nobind"), "CPU_VISIBLE_MEMORY_NODES": "2,3"}
    assert plan(xeon, env=visible).memory_nodes == (2, 3)
    xeon.write_cgroup("0::/", {"cpuset.mems.effective": "1"})
    assert plan(xeon, env=bind("0,15")).memory_nodes == (1,)
    assert plan(xeon, env=bind("0-119")).memory_nodes == (1,)


def test_lists_are_split_between_ranks(xeon: FakeMachine) -> None:
    ranks = plans(xeon, 3, env=bind("0-3|4-7|30-33"))
    assert [p.cpus for p in ranks] == [span(0, 3), span(4, 7), span(30, 33)]
    assert [p.node_ranks for p in ranks] == [2, 2, 1]


def test_list_beyond_the_quota_warns_of_throttling(arm: FakeMachine) -> None:
    machine = with_quota(arm, "300000 100000")
    assert "throttling" in plan(machine, env=bind("0-3")).reason
    assert "throttling" not in plan(machine, env=bind("0-2")).reason


@pytest.mark.parametrize(
    ("env", "world", "message"),
    [
        (bind("62-65"), 1, r"64-65, which do not exist.*choose from 4-63"),
        (bind("0-5"), 1, r"CPUs 0-3, which the affinity mask.*choose from 4-63"),
        (bind("4-7"), 2, r"1 CPU list\(s\) but 2 rank\(s\)"),
        (bind("4-7|8-9"), 1, r"2 CPU list\(s\) but 1 rank\(s\)"),
        (bind("4-7|"), 2, "empty CPU list"),
        (bind("4-7;8"), 1, "'4-7;8'|'7;8'|neither"),
        (bind("most"), 1, "'most' is neither.*'auto', 'all', 'nobind'"),
        (bind("9-4"), 1, "'9-4' is not an ascending range"),
        (bind("all"), 61, r"61 ranks cannot share what is there \(allowed CPUs: 60\)"),
        ({}, 61, r"61 ranks cannot share what is there \(cores of NUMA node 0: 60\)"),
        ({"VLLM_CPU_NUM_OF_RESERVED_CPU": "60"}, 1, "none of a rank's 60 .* at most 59"),
        ({"VLLM_CPU_NUM_OF_RESERVED_CPU": "-1"}, 1, "'-1' is not a number of cores"),
        ({"VLLM_CPU_NUM_OF_RESERVED_CPU": "two"}, 1, "'two' is not a number of cores"),
        ({"CPU_VISIBLE_MEMORY_NODES": "0,4"}, 1, "nodes 4, which do not exist.*choose from 0"),
        ({"CPU_VISIBLE_MEMORY_NODES": "x"}, 1, "CPU_VISIBLE_MEMORY_NODES is wrong, 'x'"),
    ],
)
def test_wrong_settings_say_cause_and_way_out(
    arm: FakeMachine, env: dict[str, str], world: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plans(arm, world, affinity=span(4, 63), env=env)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_node_without_allowed_cpus_is_refused(xeon: FakeMachine) -> None:
    with pytest.raises(ConfigError, match=r"nodes 5, which have no CPU.*choose from 0"):
        plan(xeon, affinity=[0, 1], env={"CPU_VISIBLE_MEMORY_NODES": "5"})


def test_empty_mask_is_refused(arm: FakeMachine) -> None:
    with pytest.raises(ConfigError, match="none of the machine's CPUs"):
        plan(arm, affinity=[1000])


def test_apply_sets_the_mask(monkeypatch: pytest.MonkeyPatch, arm: FakeMachine) -> None:
    calls: list[tuple[int, tuple[int, ...]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *args: calls.append(args))
    assert threads.apply(plan(arm, env=bind("4,2"))) is True
    assert calls == [(0, (4, 2))]
    assert threads.apply(plan(arm, env=bind("nobind"))) is False
    assert len(calls) == 1


def test_apply_warns_once_where_forbidden(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, arm: FakeMachine
) -> None:
    def refuse(_pid: int, _cpus: tuple[int, ...]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with caplog.at_level(logging.WARNING):
        assert threads.apply(plan(arm, env=bind("0-3"))) is False
    (record,) = caplog.records
    assert "0-3" in record.message
    assert "nobind" in record.message

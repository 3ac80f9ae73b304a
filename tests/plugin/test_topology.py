"""Topology and limits read from written /sys and /proc trees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_backend.runtime.cgroup import read_cgroup_memory
from cpu_backend.runtime.sysfs import Memory, format_cpu_list, parse_cpu_list
from cpu_backend.runtime.topology import (
    read_limits,
    read_machine_memory,
    read_nodes_memory,
    read_topology,
)
from tests.plugin.fake_sysfs import (
    GIB,
    FakeCpu,
    FakeMachine,
    epyc_nps4,
    graviton,
    hybrid_laptop,
    write_machine,
    xeon_snc4,
)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        (" 5, 2-4 \n", (5, 2, 3, 4)),
        ("1,1-2", (1, 2)),
        ("7", (7,)),
        ("", ()),
    ],
)
def test_cpu_list_parses(text: str, ids: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == ids


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "1-2-3", "0x1", "1.5", "0-9999999999"])
def test_cpu_list_refuses_garbage(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an ascending|neither"):
        parse_cpu_list(text)


def test_cpu_list_formats_runs() -> None:
    assert format_cpu_list([8, 3, 0, 1, 2, 10, 11, 2]) == "0-3,8,10-11"
    assert format_cpu_list([]) == ""


def test_xeon_snc4_has_nodes_packages_and_siblings(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, xeon_snc4())
    topology = machine.topology()
    assert len(topology.cpus) == 240
    assert [node.cpus[0] for node in topology.nodes] == [0, 15, 30, 45, 60, 75, 90, 105]
    assert topology.nodes[1].cpus == (*range(15, 30), *range(135, 150))
    cpu = topology.by_id[120 + 61]
    assert (cpu.core_id, cpu.package, cpu.numa_node, cpu.llc_group) == (61, 1, 4, 60)
    assert topology.smt_siblings[61] == (61, 181)
    assert topology.nodes[7].homes == (7,)
    assert read_nodes_memory((6, 7), machine.sysfs) == Memory(128 * GIB, 96 * GIB)


def test_epyc_groups_cores_by_last_level_cache(tmp_path: Path) -> None:
    topology = write_machine(tmp_path, epyc_nps4()).topology()
    assert [cpu.llc_group for cpu in topology.cpus if cpu.numa_node == 1] == [16] * 8 + [24] * 8


def test_laptop_speeds_come_from_clocks_or_capacity(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, hybrid_laptop())
    topology = machine.topology()
    assert {cpu.speed for cpu in topology.cpus} == {4_800_000, 3_800_000, 2_500_000}
    assert topology.smt_siblings[10] == (10, 11)
    for cpu in topology.cpus:
        machine.write(f"sys/devices/system/cpu/cpu{cpu.id}/cpu_capacity", "1024")
    assert {cpu.speed for cpu in machine.topology().cpus} == {1024}


def test_speeds_known_for_some_cpus_only_are_ignored(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(4))
    machine.write("sys/devices/system/cpu/cpu1/cpu_capacity", "1024")
    assert {cpu.speed for cpu in machine.topology().cpus} == {0}


@pytest.mark.parametrize(
    ("cpus", "near", "nodes", "homes"),
    [
        # Each L3 is a node, the memory is interleaved over all of the socket.
        ([FakeCpu(cpu, cpu, cpu // 8, 0, cpu // 8) for cpu in range(32)], 11, 1, ()),
        # The same with two interleaved halves of it (NPS2).
        ([FakeCpu(cpu, cpu, cpu // 8, cpu // 16, cpu // 8) for cpu in range(32)], 11, 2, (0, 1)),
        # Four caches with memory of their own (NPS4).
        ([FakeCpu(cpu, cpu, cpu // 8, 0, cpu // 8) for cpu in range(32)], 12, 4, (0,)),
        # Half sockets of Intel: 11 apart, parts of one cache.
        ([FakeCpu(cpu, cpu, cpu // 8, cpu // 16, cpu // 16) for cpu in range(32)], 11, 4, (0,)),
    ],
    ids=["L3 as nodes", "L3 as nodes of halves", "NPS4", "SNC2"],
)
def test_nodes_that_share_their_memory_are_one(
    cpus: list[FakeCpu], near: int, nodes: int, homes: tuple[int, ...], tmp_path: Path
) -> None:
    machine = write_machine(tmp_path, cpus, near=near)
    topology = machine.topology()
    assert len(topology.nodes) == nodes
    assert topology.nodes[0].cpus == tuple(range(32 // nodes))
    assert topology.nodes[0].homes == homes


def test_no_numa_files_is_one_node(tmp_path: Path) -> None:
    topology = write_machine(tmp_path, graviton(8), node_gib=16, numa_files=False).topology()
    (node,) = topology.nodes
    assert (node.id, node.cpus, node.homes) == (0, tuple(range(8)), ())


def test_no_topology_files_makes_each_cpu_a_core(tmp_path: Path) -> None:
    topology = write_machine(tmp_path, xeon_snc4(), topology_files=False).topology()
    assert all(cpu.core_id == cpu.id and cpu.package == 0 for cpu in topology.cpus)
    assert topology.by_id[200].llc_group == topology.by_id[200].numa_node * 15


def test_offline_cpus_are_left_out(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(8))
    machine.write("sys/devices/system/cpu/online", "0-3,6")
    assert [cpu.id for cpu in machine.topology().cpus] == [0, 1, 2, 3, 6]
    assert machine.topology().nodes[0].cpus == (0, 1, 2, 3, 6)


def test_hidden_sysfs_falls_back_to_proc_stat_then_to_the_count(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    assert len(machine.topology().cpus) == os.cpu_count()
    machine.write("proc/stat", "cpu  1 2 3\ncpu0 1 2 3\ncpu5 1 2 3\nintr 7")
    assert [cpu.id for cpu in machine.topology().cpus] == [0, 5]


def test_memory_only_nodes_stay_listed(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(4))
    machine.write("sys/devices/system/node/node8/cpulist", "")
    assert [(node.id, node.cpus) for node in machine.topology().nodes] == [
        (0, (0, 1, 2, 3)),
        (8, ()),
    ]


def test_single_node_is_no_choice_of_memory(tmp_path: Path) -> None:
    """Its file may say less than the machine has."""
    assert write_machine(tmp_path, graviton(2)).topology().nodes[0].homes == ()


def test_machine_memory_without_meminfo_is_still_known(tmp_path: Path) -> None:
    memory = read_machine_memory(tmp_path, tmp_path)
    assert 0 < memory.available <= memory.total


def test_affinity_and_cpuset_are_intersected(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, xeon_snc4())
    machine.write_cgroup(
        "0::/pod", {"pod/cpuset.cpus.effective": "4-20", "pod/cpuset.mems.effective": "1"}
    )
    limits = machine.limits(range(16, 300))
    assert limits.cpus == frozenset(range(16, 21))
    assert limits.memory_nodes == {1}
    assert limits.cpu_quota is None


def test_cpuset_v1_and_a_contradicting_one(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(8))
    machine.write_cgroup("4:cpuset:/a/b", {"cpuset/a/cpuset.effective_cpus": "2-3"})
    assert machine.limits().cpus == {2, 3}
    assert machine.limits([5, 6]).cpus == {5, 6}


def test_affinity_of_the_process_is_the_default() -> None:
    topology = read_topology()
    assert read_limits(topology).cpus <= os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("self_cgroup", "files", "quota"),
    [
        ("0::/", {"cpu.max": "300000 100000"}, 3.0),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/a/b", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"}, 2.5),
        ("0::/a/b", {"a/cpu.max": "800000 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        ("0::/../../x", {"cpu.max": "200000 100000", "../cpu.max": "100000 100000"}, 2.0),
        ("", {"cpu.max": "200000 100000"}, 2.0),
        (
            "3:cpu,cpuacct:/docker/0a1b\n2:memory:/docker/0a1b",
            {"cpu,cpuacct/cpu.cfs_quota_us": "150000", "cpu,cpuacct/cpu.cfs_period_us": "50000"},
            3.0,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("1:pids:/\n0::/", {"unified/cpu.max": "100000 100000"}, 1.0),
    ],
)
def test_cpu_quota(
    tmp_path: Path, self_cgroup: str, files: dict[str, str], quota: float | None
) -> None:
    machine = write_machine(tmp_path, graviton(2))
    machine.write_cgroup(self_cgroup, files)
    assert machine.limits().cpu_quota == quota


def test_cgroup_v2_memory_is_the_tightest_of_all_levels(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write_cgroup(
        "0::/slice/pod",
        {
            "slice/memory.max": str(8 * GIB),
            "slice/memory.current": str(7 * GIB),
            "slice/memory.stat": f"anon 1\nfile 2\ninactive_file {2 * GIB}",
            "slice/pod/memory.max": str(6 * GIB),
            "slice/pod/memory.current": str(1 * GIB),
        },
    )
    assert read_cgroup_memory(machine.sysfs, machine.procfs) == Memory(6 * GIB, 3 * GIB)


def test_cgroup_v2_without_limit_is_none(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write_cgroup("0::/", {"memory.max": "max", "memory.current": "5"})
    assert read_cgroup_memory(machine.sysfs, machine.procfs) is None


def test_cgroup_v1_memory_of_a_host_path_is_found_at_the_mount(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write_cgroup(
        "9:memory:/kubepods/pod1/c1\n1:name=systemd:/kubepods",
        {
            "memory/memory.limit_in_bytes": str(4 * GIB),
            "memory/memory.usage_in_bytes": str(3 * GIB),
            "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}",
        },
    )
    assert read_cgroup_memory(machine.sysfs, machine.procfs) == Memory(4 * GIB, 2 * GIB)


def test_usage_above_the_limit_leaves_nothing_rather_than_less(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    machine.write_cgroup("0::/", {"memory.max": "100", "memory.current": "150"})
    assert read_cgroup_memory(machine.sysfs, machine.procfs) == Memory(100, 0)


def test_runtime_imports_neither_torch_nor_vllm() -> None:
    modules = "topology, threads, memory"
    code = f"""
import sys
from cpu_backend.runtime import {modules}
sys.exit(bool({{"torch", "vllm", "subprocess"}} & sys.modules.keys()))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

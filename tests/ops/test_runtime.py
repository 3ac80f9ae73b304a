"""The library as a whole: what it says of itself, its threads, its size, and how loading fails."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import torch

from cpu_backend import __version__, native, ops
from tests.targets import TARGETS, of


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment
    )


def output(code: str, **environment: str) -> str:
    done = run(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_library_describes_itself(library: native.Library) -> None:
    assert library.target in library.runnable
    assert set(library.runnable) <= set(library.built)
    assert library.built == tuple(target.name for target in of(platform.machine()))[::-1]
    assert library.target == (os.environ.get("CPU_BACKEND_ISA") or library.runnable[0])
    assert library.torch.split(".")[:2] == torch.__version__.split(".")[:2]
    fields = dict(part.split("=") for part in torch.ops.cpu_backend.describe().split(";"))
    assert set(fields) == {"target", "runnable", "built", "next", "threads", "torch", "version"}
    better = [target for target in library.built if target not in library.runnable]
    assert not library.next or library.next.partition(":")[0] in better
    assert fields["version"] == __version__
    assert int(fields["threads"]) == torch.get_num_threads()


def test_every_runnable_target_can_be_chosen(library: native.Library) -> None:
    for target in library.runnable:
        code = "from cpu_backend import ops; print(ops.load().target)"
        assert output(code, CPU_BACKEND_ISA=target) == target


def test_unknown_instruction_set_gives_one_sentence(library: native.Library) -> None:
    code = (
        "from cpu_backend import errors, ops\n"
        "for attempt in range(2):\n"
        "    try: ops.load()\n"
        "    except errors.ConfigError as error: print(error)\n"
    )
    sentence = (
        "CPU_BACKEND_ISA=nonsense is not available: this CPU and build can run "
        f"{', '.join(library.runnable)}; unset CPU_BACKEND_ISA to take the best of them."
    )
    assert output(code, CPU_BACKEND_ISA="nonsense").splitlines() == [sentence, sentence]


def test_instruction_set_of_another_cpu_is_refused(library: native.Library) -> None:
    for target in set(TARGETS) - set(library.runnable):
        done = run("from cpu_backend import ops; ops.load()", CPU_BACKEND_ISA=target)
        assert done.returncode == 1
        assert f"ConfigError: CPU_BACKEND_ISA={target} is not available" in done.stderr


def test_bind_threads_puts_one_thread_on_each_cpu() -> None:
    code = (
        "import os, torch\n"
        "from cpu_backend import ops\n"
        "ops.load()\n"
        "allowed = os.sched_getaffinity(0)\n"
        "cpus = tuple(sorted(allowed))\n"
        "print(ops.bind_threads(cpus), torch.get_num_threads() == len(cpus))\n"
        "bound = [os.sched_getaffinity(int(t)) for t in os.listdir('/proc/self/task')]\n"
        "print(os.sched_getaffinity(0) == {cpus[0]}, all({c} in bound for c in cpus))\n"
        "os.sched_setaffinity(0, allowed)\n"
        "print(os.sched_getaffinity(0) == allowed)\n"
    )
    assert output(code).split() == ["True"] * 5


def test_bind_threads_to_a_forbidden_cpu_says_so_and_keeps_the_count() -> None:
    code = (
        "import torch\n"
        "from cpu_backend import ops\n"
        "ops.load()\n"
        "print(ops.bind_threads((1023,)), torch.get_num_threads())\n"
    )
    assert output(code) == "False 1"


def test_set_num_threads_sizes_the_pool(threads: None) -> None:
    for count in (1, 3):
        ops.set_num_threads(count)
        assert torch.get_num_threads() == count


def test_bind_memory_answers_with_its_outcome() -> None:
    """Whether a container may bind memory is the system's choice; that it answers is not."""
    answer = output("from cpu_backend import ops; ops.load(); print(ops.bind_memory((0,)))")
    assert answer in ("bind", "preferred") or answer.startswith("not possible: ")


def test_one_openmp_runtime_is_loaded() -> None:
    code = (
        "import torch\n"
        "from cpu_backend import ops\n"
        "ops.load()\n"
        "x = torch.ones(64, 64)\n"
        "torch.ops._C.rms_norm(x, x, None, 1e-5)\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps')}\n"
        "names = ('libgomp', 'libomp', 'libiomp')\n"
        "print(*sorted(p for p in paths if any(n in p.rpartition('/')[2] for n in names)))\n"
    )
    assert len(output(code).split()) == 1


def test_libraries_are_small_and_stripped() -> None:
    for path in native.FOLDER.glob("*.so"):
        data = path.read_bytes()
        # 1.1 to 2.0 MB for each instruction set; a wheel packs them to half.
        assert len(data) < (12.4e6 if path.name == native.KERNELS else 2e6), path
        assert b".symtab\0" not in data
        assert b".debug_info\0" not in data


def test_scratch_survives_threads_coming_and_going(seeded: torch.Generator, threads: None) -> None:
    weight, x = torch.randn(65, 40, generator=seeded), torch.randn(13, 40, generator=seeded)
    layer = ops.PackedLinear(weight)
    first = layer(x)
    for count in (4, 1, 2, 3):
        torch.set_num_threads(count)
        assert torch.equal(layer(x), first)

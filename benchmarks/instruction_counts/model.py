"""How fast llvm-mca's models of CPUs run instructions, all data in the first-level cache."""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Sequence

from benchmarks.instruction_counts.assembly import CountError, alone, multiply_adds
from benchmarks.instruction_counts.products import PATH, run
from tests.targets import Target

# The CPUs of a target, as LLVM names them.
CPUS = {
    "neon": ("cortex-a72",),
    "neon_dotprod": ("neoverse-n1",),
    "neon_i8mm_bf16": ("neoverse-v1", "neoverse-v2", "neoverse-n2"),
    "avx2": ("haswell", "znver3"),
    "avx2_vnni": ("alderlake",),
    "avx512": ("skylake-avx512",),
    "avx512_vnni": ("icelake-server", "znver4"),
    "avx512_bf16": ("znver4",),
}
# Of its releases those before this one take many Neoverse cores for a Cortex-A57.
OLDEST = 17
_TURNS = 100


@functools.cache
def _program() -> str:
    for name in ("llvm-mca", *(f"llvm-mca-{release}" for release in range(OLDEST, 30))):
        if shutil.which(name, path=PATH):
            release = re.search(r"LLVM version (\d+)", run([name, "--version"]))
            if release and int(release[1]) >= OLDEST:
                return name
    raise CountError(
        f"llvm-mca of LLVM {OLDEST} or later is not installed: .ci/install_packages brings it"
    )


def version() -> str:
    """Its release, as it says itself."""
    found = re.search(r"LLVM version (\S+)", run([_program(), "--version"]))
    return found[1] if found else "?"


@functools.cache
def _cycles(architecture: str, cpu: str, text: str, turns: int) -> int:
    words = [_program(), f"-mtriple={architecture}", f"-mcpu={cpu}", f"-iterations={turns}"]
    found = re.search(r"^Total Cycles: +(\d+)", run(words, text), re.MULTILINE)
    if found is None:
        raise CountError(f"{_program()} gives no cycles for {cpu}")
    return int(found[1])


def cycles(architecture: str, cpu: str, instructions: Sequence[str]) -> float:
    """Of one of many turns of a loop.  CountError: no such model, or it knows not all of this."""
    text = "".join(f"\t{each}\n" for each in instructions)
    text = re.sub(r"0xf{14}(?=[0-9a-f]{2}$)", "0x", text, flags=re.MULTILINE)  # GCC's bytes
    more, fewer = (_cycles(architecture, cpu, text, n * _TURNS) for n in (2, 1))
    return (more - fewer) / _TURNS


def limit(target: Target, cpu: str, kind: str) -> float:
    """Multiply-adds per cycle of the best instruction alone, for products of this kind."""
    return max(
        sum(multiply_adds(instruction, kind) for instruction in block)
        / cycles(target.architecture, cpu, block)
        for block in alone(kind, target.features)
    )

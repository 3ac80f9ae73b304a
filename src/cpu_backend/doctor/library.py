"""The native library: whether it loads, its instruction set, and the OpenMP runtimes beside it."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpu_backend import envs
from cpu_backend.doctor.finding import Finding, note, ok, told
from cpu_backend.errors import ConfigError
from cpu_backend.runtime.sysfs import PROCFS, read_text

# What the next kind of processor would bring, by what runs here.
NEXT = {
    "scalar": "no vector instructions are used; AVX2 (x86-64 since 2013) is many times as fast",
    "avx2": "AVX-512 with VNNI and BF16 (Zen 4, Sapphire Rapids) would be the next step",
    "avx2_vnni": "AVX-512 with VNNI and BF16 (Zen 4, Sapphire Rapids) would be the next step",
    "avx512": "VNNI (Ice Lake, Zen 4) would speed up integer weights",
    "avx512_vnni": "BF16 (Zen 4, Sapphire Rapids) would speed up prompts in bf16",
    "avx512_bf16": "AMX (Sapphire Rapids) would multiply bf16 in tiles",
}
RUNTIME = re.compile(r" (/.*/lib(?:gomp|iomp5|omp)\b[^/\n]*\.so[^/\n]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """``target`` and ``runnable`` as the library says, or ``mistake``, why it does not load;
    ``forced`` is CPU_BACKEND_ISA, ``flags`` those of the processor in /proc/cpuinfo; ``runtimes``
    the files of OpenMP runtimes that are mapped once it is loaded."""

    target: str
    runnable: tuple[str, ...]
    mistake: str
    forced: str
    flags: frozenset[str]
    runtimes: tuple[str, ...]


def read(procfs: Path = PROCFS) -> Facts:
    target, mistake = "", ""
    runnable: tuple[str, ...] = ()
    try:
        from cpu_backend import ops

        library = ops.load()
        target, runnable = library.target, library.runnable
    except ConfigError as error:
        mistake = str(error)
    except Exception as error:  # a torch that is missing or broken: install.py names it
        mistake = f"the native library needs torch ({type(error).__name__}): mend torch first"
    return Facts(
        target,
        runnable,
        mistake,
        envs.ISA.get(),
        _flags(read_text(procfs / "cpuinfo")),
        runtimes(read_text(procfs / "self/maps")),
    )


def _flags(cpuinfo: str) -> frozenset[str]:
    found = re.search(r"^(?:flags|Features|features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def runtimes(maps: str) -> tuple[str, ...]:
    """The OpenMP runtimes in a process's map of its memory."""
    return tuple(sorted(set(RUNTIME.findall(maps))))


def judge(facts: Facts) -> Iterator[Finding]:
    if facts.mistake:
        yield told("library", facts.mistake)
    else:
        yield _instruction_set(facts)
        if "amx_bf16" in facts.flags and "amx" not in facts.runnable:
            yield note(
                "isa",
                "the processor has AMX, and the system does not let this process use it",
                "a kernel from Linux 5.16 on, and a container that allows arch_prctl",
            )
    if len(facts.runtimes) > 1:
        yield note(
            "openmp",
            f"{len(facts.runtimes)} OpenMP runtimes are loaded ({', '.join(facts.runtimes)}), "
            "whose threads compete",
            "unset LD_PRELOAD, or keep one of them",
        )
    elif facts.runtimes:
        yield ok("openmp", f"one runtime, {Path(facts.runtimes[0]).name}")


def _instruction_set(facts: Facts) -> Finding:
    best = facts.runnable[0]
    if facts.target != best:
        said = f"{facts.target} is used, as CPU_BACKEND_ISA={facts.forced}, and {best} runs here"
        return note("isa", said, "unset CPU_BACKEND_ISA")
    more = NEXT.get(best, "")
    if best == "scalar" and platform.machine() == "x86_64":
        return note("isa", f"scalar: {more}", "use another processor")
    return ok("isa", f"{best}, the best that runs here{f'; {more}' if more else ''}")

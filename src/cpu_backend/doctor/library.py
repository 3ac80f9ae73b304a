"""The native library: whether it loads, its instruction set, and the OpenMP runtimes beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpu_backend import envs
from cpu_backend.doctor.finding import Finding, note, ok, told
from cpu_backend.errors import ConfigError
from cpu_backend.runtime.sysfs import PROCFS, read_text

RUNTIME = re.compile(r" (/.*/lib(?:gomp|iomp5|omp)\b[^/\n]*\.so[^/\n]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Facts:
    """``target``, ``runnable`` and ``next`` as the library says, or ``mistake``, why it does not
    load; ``forced`` is CPU_BACKEND_ISA, ``flags`` those of the processor in /proc/cpuinfo;
    ``runtimes`` the files of OpenMP runtimes that are mapped once it is loaded."""

    target: str
    runnable: tuple[str, ...]
    mistake: str
    forced: str
    flags: frozenset[str]
    runtimes: tuple[str, ...]
    next: str = ""


def read(procfs: Path = PROCFS) -> Facts:
    target, mistake, better = "", "", ""
    runnable: tuple[str, ...] = ()
    try:
        from cpu_backend import ops

        library = ops.load()
        target, runnable, better = library.target, library.runnable, library.next
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
        better,
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
    if best == "scalar" and facts.next:
        said = f"scalar, the slowest; the next step would be {facts.next}"
        return note("isa", said, "use another processor")
    more = f"; the next step would be {facts.next}" if facts.next else ""
    return ok("isa", f"{best}, the best that runs here{more}")

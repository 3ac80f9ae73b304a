"""Memory: the limit, which models fit below it, and settings of the system that take some away."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpu_backend.doctor.finding import Finding, note, ok, problem
from cpu_backend.runtime.memory import GIB, MemoryStatus, read_memory_status, safety_margin
from cpu_backend.runtime.sysfs import PROCFS, SYSFS, read_int, read_text

# Bytes per parameter of the layers: integers with their scales, one for 128 weights in int4.
BYTES = {"bf16": 2.0, "int8": 1.01, "int4": 0.53}
KV_PART = 1 / 8  # of what the margin leaves, beside the weights
NEEDED = 2 * GIB  # with less, Python, torch and the host leave no room for the smallest models


@dataclass(frozen=True)
class Facts:
    """``huge_pages`` is the transparent ones' setting, "" where unknown; ``reserved_huge_bytes``
    lie in pages that only programs get that ask for them; ``overcommit`` is the kernel's
    vm.overcommit_memory; ``address_space`` the limit of ulimit -v, None without one."""

    status: MemoryStatus
    huge_pages: str
    reserved_huge_bytes: int
    overcommit: int | None
    address_space: int | None


def read(sysfs: Path = SYSFS, procfs: Path = PROCFS) -> Facts:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return Facts(
        read_memory_status(sysfs=sysfs, procfs=procfs),
        _chosen(read_text(sysfs / "kernel/mm/transparent_hugepage/enabled")),
        _reserved_huge_bytes(procfs),
        read_int(procfs / "sys/vm/overcommit_memory"),
        None if limit == resource.RLIM_INFINITY else limit,
    )


def _chosen(text: str) -> str:
    """ "always [madvise] never" -> "madvise"."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else ""


def _reserved_huge_bytes(procfs: Path) -> int:
    found = re.search(r"^Hugetlb: *(\d+) kB", read_text(procfs / "meminfo"), re.MULTILINE)
    return int(found[1]) << 10 if found else 0


def judge(facts: Facts) -> Iterator[Finding]:
    status = facts.status
    whose = {"cgroup": "the container", "node": "the NUMA node", "machine": "the machine"}
    said = (
        f"{status.available / GIB:.1f} of {status.total / GIB:.1f} GiB are available, limited by "
        f"{whose[status.limited_by]}"
    )
    if status.available < NEEDED:
        yield problem("memory", said, f"give at least {NEEDED / GIB:.0f} GiB to start at all")
    else:
        yield ok("memory", said)
        yield ok("models", _fits(status))
    yield from _system(facts)


def _fits(status: MemoryStatus) -> str:
    free = status.available - safety_margin(status)
    cache = free * KV_PART
    sizes = ", ".join(f"{(free - cache) / b / 1e9:.2g} in {name}" for name, b in BYTES.items())
    return f"billions of parameters that fit beside {cache / GIB:.1f} GiB of KV cache: {sizes}"


def _system(facts: Facts) -> Iterator[Finding]:
    if facts.reserved_huge_bytes:
        yield note(
            "pages",
            f"{facts.reserved_huge_bytes / GIB:.1f} GiB lie in reserved huge pages, which nothing "
            "here uses",
            "sysctl vm.nr_hugepages=0",
        )
    elif facts.huge_pages:
        yield ok("pages", f"transparent huge pages: {facts.huge_pages}, which makes no difference")
    if facts.overcommit == 2:
        yield note(
            "memory",
            "the system promises no more memory than it has (vm.overcommit_memory=2), and the host "
            "asks for much that it does not use",
            "sysctl vm.overcommit_memory=0",
        )
    if facts.address_space is not None:
        yield note(
            "memory",
            f"ulimit -v allows {facts.address_space / GIB:.1f} GiB of addresses, of which mapped "
            "weights and libraries take more than they use memory",
            "ulimit -v unlimited, and limit memory by a cgroup",
        )

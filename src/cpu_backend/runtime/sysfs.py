"""Small files of /sys and /proc as numbers, lists of CPUs and amounts of memory.

The roots are parameters everywhere so that tests can pass recorded trees.  A missing or odd file
reads as nothing, never as an exception.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
PROCFS = Path("/proc")

# Linux builds stop at 8192 CPUs; the bound keeps a typo such as 0-9999999999 from filling the RAM.
MAX_CPUS = 1 << 16


@dataclass(frozen=True)
class Memory:
    """Bytes in total, and bytes that can be had now without swapping."""

    total: int
    available: int


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """``"0-3,8"`` -> ``(0, 1, 2, 3, 8)``: in the order given, repeats dropped, "" is empty.

    Raises ValueError for anything else.
    """
    ids: dict[int, None] = {}
    for part in filter(None, text.strip().split(",")):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() for end in ends):
            raise ValueError(f"{part!r} is neither a CPU id nor a range such as 0-3")
        first, last = int(ends[0]), int(ends[-1])
        if last < first or last >= MAX_CPUS:
            raise ValueError(f"{part!r} is not an ascending range of CPU ids")
        ids.update(dict.fromkeys(range(first, last + 1)))
    return tuple(ids)


def format_cpu_list(ids: Iterable[int]) -> str:
    """``{0, 1, 2, 3, 8}`` -> ``"0-3,8"``."""
    runs: list[list[int]] = []
    for cpu in sorted(set(ids)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(map(str, run)) for run in runs)


def read_meminfo(path: Path) -> Memory | None:
    """Read /proc/meminfo, or a node's meminfo, whose lines start with "Node 0"."""
    fields = (line.partition(":") for line in read_text(path).splitlines())
    info = {key.split()[-1]: int(value.split()[0]) * 1024 for key, _, value in fields if value}
    if "MemTotal" not in info:
        return None
    # Nodes have no MemAvailable; these four are what the kernel builds it from.
    parts = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
    available = info.get("MemAvailable", sum(info.get(part, 0) for part in parts))
    return Memory(info["MemTotal"], available)


def read_cpu_list(path: Path) -> tuple[int, ...]:
    """The file's list of CPUs or nodes; empty where it is absent or not a list."""
    try:
        return parse_cpu_list(read_text(path))
    except ValueError:
        return ()


def read_int(path: Path) -> int | None:
    """The file's only number; None where it is absent or something else."""
    text = read_text(path).strip()
    return int(text) if text.removeprefix("-").isdecimal() else None


def read_text(path: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""

"""What a run of several parts prints at its end: tests skipped for lack of a tool, and where the
time went.

    python -m tests.report run NAME COMMAND...   runs a part and keeps its time
    python -m tests.report skip TOOL WHAT        keeps that WHAT was skipped for lack of TOOL
    python -m tests.report show                  prints the tables

Every part appends lines of JSON to the file that CPU_BACKEND_TEST_REPORT names; without the
variable nothing is kept.  Needs no package, so that it can run before any is installed.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.tools import TOOLS, must_be_there, sentence

FILE = "CPU_BACKEND_TEST_REPORT"
SLOWEST_FILES = 15


def add(kind: str, **fields: Any) -> None:
    """Append one record, if somebody asked for a report."""
    if path := os.environ.get(FILE):
        with Path(path).open("a") as file:
            print(json.dumps({"kind": kind, **fields}), file=file)


def records() -> list[dict[str, Any]]:
    path = Path(os.environ.get(FILE, ""))
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def run(name: str, command: list[str]) -> int:
    """The command's status; its time, its own and its children's CPU time are kept."""
    print(f"=== {name}", flush=True)
    start = time.monotonic()
    status = subprocess.run(command, check=False).returncode
    seconds = time.monotonic() - start
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = usage.ru_utime + usage.ru_stime
    add("part", name=name, seconds=seconds, cpu=cpu, status=status)
    print(f"=== {name}: {seconds:.0f} s" + (f", failed ({status})" if status else ""), flush=True)
    return status if status >= 0 else 128 - status


def skip(tool: str, what: str, tests: int = 1) -> int:
    """1 if the tool must be there, else 0: the skip is said and kept."""
    error = must_be_there(tool)
    print(f"{'error' if error else 'skipped'}: {what} {sentence(tool)}", flush=True)
    add("skip", tool=tool, tests=tests)
    return int(error)


def tables() -> Iterator[str]:
    """The report's lines."""
    kept = records()
    parts = [
        (r["name"], f"{r['seconds']:.0f}", f"{r['cpu']:.0f}", "failed" if r["status"] else "")
        for r in kept
        if r["kind"] == "part"
    ]
    yield from _table("Where the time went", ("part", "s", "CPU s", ""), parts)
    files: Counter[str] = Counter()
    for r in kept:
        if r["kind"] == "file":
            files[r["name"]] += r["seconds"]
    slowest = [(name, f"{seconds:.0f}") for name, seconds in files.most_common(SLOWEST_FILES)]
    yield from _table("Slowest test files", ("file", "s"), slowest)
    skipped: Counter[str] = Counter()
    for r in kept:
        if r["kind"] == "skip":
            skipped[r["tool"]] += r["tests"]
    rows = [
        (tool, TOOLS[tool].tests, str(tests), TOOLS[tool].install)
        for tool, tests in skipped.items()
    ]
    header = ("missing", "would test", "skipped", "to get it")
    yield from _table("Not tested on this machine", header, rows)


def _table(title: str, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    yield ""
    yield title
    for row in (header, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {line}".rstrip()


def main(arguments: list[str]) -> int:
    match arguments:
        case ["run", name, *command] if command:
            return run(name, command)
        case ["skip", tool, what] if tool in TOOLS:
            return skip(tool, what)
        case ["show"]:
            print(*tables(), sep="\n")
            return 0
    print((__doc__ or "").strip(), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

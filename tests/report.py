"""What a run of several parts prints at its end: tests skipped for lack of a tool, and where the
time went.

    python -m tests.report run [--needs TOOL]... NAME COMMAND...
    python -m tests.report show

Every part appends lines of JSON to the file that CPU_BACKEND_TEST_REPORT names; without the
variable nothing is kept.  No part, and no test of pytest's, begins after CPU_BACKEND_TEST_UNTIL, in
seconds since 1970: a slow machine leaves out the last ones and says which.  Needs no package, so
that it can run before any is installed.
"""

from __future__ import annotations

import argparse
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

from tests.tools import TOOLS, is_there, must_be_there, sentence

FILE = "CPU_BACKEND_TEST_REPORT"
UNTIL = "CPU_BACKEND_TEST_UNTIL"
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


def skip(tool: str, name: str) -> int:
    """The status of a part that lacks ``tool``: 0 only if it may; the skip is said and kept."""
    error = must_be_there(tool)
    print(f"=== {name}: {'error' if error else 'skipped'}, {sentence(tool)}", flush=True)
    add("skip", tool=tool, tests=1)
    return int(error)


def is_late() -> bool:
    """Whether nothing may begin any more."""
    return time.time() > float(os.environ.get(UNTIL) or "inf")


def tables() -> Iterator[str]:
    """The report's lines."""
    kept = records()
    parts = [
        (r["name"], f"{r['seconds']:.0f}", f"{r['cpu']:.0f}", "failed" if r["status"] else "")
        for r in kept
        if r["kind"] == "part"
    ]
    yield from _table("Where the time went", ("part", "s", "CPU s", ""), parts)
    yield from _table("Kernel tests by instruction set", ("target", "ran"), _targets(kept))
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
    late = [(r["name"], str(r["tests"] or "all")) for r in kept if r["kind"] == "late"]
    yield from _table("Not run for lack of time", ("part or file", "tests"), late)


def _targets(kept: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """How the tests of each target ran (tests/targets.py), if they did."""
    how: dict[str, list[str]] = {}
    for r in kept:
        if r["kind"] == "target":
            ways = how.setdefault(r["name"], [])
            if r["how"] and r["how"] not in ways:
                ways.append(r["how"])
    for name, ways in how.items():
        yield name, ", ".join(ways) or "only compiled"


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    part = commands.add_parser("run", help="run a part and keep its time")
    part.add_argument("--needs", choices=TOOLS, action="append", default=[], help="or skip it")
    part.add_argument("name")
    part.add_argument("command", nargs=argparse.REMAINDER)
    commands.add_parser("show", help="print the tables")
    options = parser.parse_args()
    if options.what == "show":
        print(*tables(), sep="\n")
        return 0
    lacking = [tool for tool in options.needs if not is_there(tool)]
    if lacking:
        return skip(lacking[0], options.name)
    if is_late():
        print(f"=== {options.name}: not run, the time for this run is over", flush=True)
        add("late", name=options.name, tests=None)
        return 0
    return run(options.name, options.command)


if __name__ == "__main__":
    sys.exit(main())

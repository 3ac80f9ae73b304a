"""The table of instruction sets (csrc/dispatch/targets.def), and where their kernel tests ran.

    python -m tests.targets docs           the docs' table
    python -m tests.targets ran PRESET     what the tests of this preset ran on

Needs no package, as tests/report.py.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import report

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "csrc/dispatch/targets.def"
ENTRY = re.compile(
    r'TARGET\((\w+), (\w+),\s+"([^"]*)",\s+([^"]+),\s+"([^"]*)",\s+"([^"]*)",\s+"([^"]*)"\)'
    r"|#(?:el)?if defined\(__(\w+)__\)|#(endif)"
)


@dataclass(frozen=True)
class Target:
    """A line of the table; ``architecture`` is empty for every one.  ``features`` are its own and
    those of all its bases."""

    architecture: str
    name: str
    base: str
    flags: str
    features: frozenset[str]
    cpu: str
    areas: str
    what: str


def read(text: str) -> dict[str, Target]:
    """The targets by name, each after those that are worse."""
    found: dict[str, Target] = {}
    architecture = ""
    for name, base, flags, features, cpu, areas, what, section, _ in ENTRY.findall(text):
        if not name:
            architecture = section
            continue
        own = frozenset(features.split(" && ")) - {"true"}
        inherited = found[base].features if base in found else frozenset()
        found[name] = Target(architecture, name, base, flags, own | inherited, cpu, areas, what)
    return found


TARGETS = read(TABLE.read_text())


def of(architecture: str) -> list[Target]:
    return [target for target in TARGETS.values() if target.architecture in ("", architecture)]


def docs() -> str:
    """The docs' table."""
    lines = ["| target | extends | what it adds | CPU features | tested on |", "| --- " * 5 + "|"]
    for target in TARGETS.values():
        base = TARGETS.get(target.base)
        own = target.features - (base.features if base else frozenset())
        features = ", ".join(f"`{name}`" for name in sorted(own)) or "—"
        emulator = "Bochs" if target.architecture == "x86_64" else "qemu"
        cpu = "the machine itself" if target.areas == "-" else f"{emulator}: `{target.cpu}`"
        where = cpu if target.cpu else "every CPU"
        base_name = f"`{base.name}`" if base else "—"
        lines.append(f"| `{target.name}` | {base_name} | {target.what} | {features} | {where} |")
    return "\n".join(lines)


def ran(build: Path) -> str:
    """Which targets the last tests in this build folder ran on and how, as one line."""
    cache = (build / "CMakeCache.txt").read_text()
    log = (build / "Testing/Temporary/LastTest.log").read_text(errors="replace")
    emulator = re.search(r"^CMAKE_CROSSCOMPILING_EMULATOR:\w+=(.+)$", cache, re.MULTILINE)
    processor = re.search(r"^CMAKE_SYSTEM_PROCESSOR:\w+=(.+)$", cache, re.MULTILINE)
    built = of(processor[1] if processor else platform.machine())
    seen = set(re.findall(r"^ran on target (\w+)$", log, re.MULTILINE))
    by = ""
    if emulator:
        path = Path(emulator[1])
        by = "Bochs" if "bochs" in path.parts else path.name.removesuffix("-static")
    names = [target for target in built if target.name in seen]
    for target in built:
        how = "natively" if not by else f"{by} ({target.cpu})" if target.cpu else by
        report.add("target", name=target.name, how=how if target in names else "")
    if by:
        said = f"emulated by {by}: " + ", ".join(
            f"{target.name} on {target.cpu}" if target.cpu else target.name for target in names
        )
    else:
        said = "natively: " + ", ".join(target.name for target in names)
    rest = [target.name for target in built if target not in names]
    return f"{said or 'none'}; only compiled: {', '.join(rest) or 'none'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("docs", help="print the docs' table")
    one = commands.add_parser("ran", help="print what the tests of a preset ran on")
    one.add_argument("preset")
    options = parser.parse_args()
    print(docs() if options.what == "docs" else ran(ROOT / "build" / options.preset))
    return 0


if __name__ == "__main__":
    sys.exit(main())

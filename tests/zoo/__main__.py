"""``python -m tests.zoo``: the outcome of each architecture, and docs/models.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.zoo import kinds, run, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all if none is named")
    parser.add_argument(
        "--write",
        type=Path,
        help="write what was found to this file; other architectures keep their row",
    )
    parser.add_argument("--trace", action="store_true", help="show where an engine ended")
    arguments = parser.parse_args()
    names = arguments.names or [spec.name for kind in kinds.KINDS.values() for spec in kind.SPECS]
    run.prepare()
    outcomes = {}
    for name in names:
        outcome = outcomes[name] = kinds.examine(name)
        print(f"{name}: {outcome.state}. {outcome.note}", flush=True)
        if arguments.trace and outcome.where:
            print(outcome.where, flush=True)
    if arguments.write:
        before = arguments.write.read_text() if arguments.write.exists() else ""
        arguments.write.write_text(table.page(outcomes, before))
    return any(table.is_defect(outcome) for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())

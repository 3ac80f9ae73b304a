"""The zoo's process beside pytest's, which has threads already and may not be forked.

``python -m tests.zoo.server`` answers names of architectures, a line each on stdin, by outcomes as
JSON on stdout.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

from tests.zoo.judge import Outcome


class Zoo:
    """One such process: imports are paid once for all architectures that are asked for."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.zoo.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Zoo:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def examine(self, name: str) -> Outcome:
        """The outcome of one architecture."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(name, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, "the zoo's process has ended"
        found: dict[str, Any] = json.loads(line)
        return Outcome(**found)


def main() -> None:
    """Serve until stdin ends; what imports print goes to stderr."""
    from tests.zoo import kinds, run

    answers, sys.stdout = sys.stdout, sys.stderr
    run.prepare()
    for line in sys.stdin:
        outcome = kinds.examine(line.strip())
        print(json.dumps(dataclasses.asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""This project and its peers on the same work, in turns, on one machine: docs/benchmarking.md.

`python -m benchmarks.compare` in the project's folder does everything; `__main__` has the options.
The way of a figure: `peers` says what there is, `environments` and `models` make what a peer
needs, `measure` takes turns, each a `process` that runs one of `runners/`, `summary` turns the
records into figures, `report` and `chart` show them. Standard library only, apart from what runs
in the peers' own environments (`runners/`, `convert/`).
"""

import sys
from pathlib import Path

# What reads the machine is this project's own, found where nothing is installed.
sys.path.append(str(Path(__file__).parents[2] / "src"))

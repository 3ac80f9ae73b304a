"""Kernels of two builds in turns: how many times as fast this one is.

    python benchmarks/kernels/beside.py FOLDER [--rounds N] [options of benchmarks/kernels ...]

FOLDER holds the other build's package, as `pip install --target FOLDER .` leaves it. Each round
runs both, the other first; the ratio of a row is the median over the rounds, in brackets the range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

Key = tuple[str, ...]


def _seconds(options: list[str], folder: str | None) -> dict[Key, float]:
    """Median seconds of each row of one run."""
    environ = {**os.environ, "PYTHONPATH": folder} if folder else dict(os.environ)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "rows.json"
        command = [sys.executable, str(Path(__file__).parent), *options, "--json", str(path)]
        subprocess.run(command, env=environ, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads(path.read_text())["rows"]
    return {(r["kernel"], r["shape"], r["dtype"], r["size"]): r["seconds"] for r in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", help="of the other build's package")
    parser.add_argument("--rounds", type=int, default=5)
    arguments, options = parser.parse_known_args()
    if not (Path(arguments.folder) / "cpu_backend").is_dir():
        sys.exit(f"error: {arguments.folder} has no folder cpu_backend: pip install --target it.")
    ratios: dict[Key, list[float]] = {}
    here: dict[Key, list[float]] = {}
    for _ in range(arguments.rounds):
        other, own = _seconds(options, arguments.folder), _seconds(options, None)
        for key, seconds in own.items():
            here.setdefault(key, []).append(seconds)
            ratios.setdefault(key, []).append(other[key] / seconds)
    print("| kernel | shape | dtype | size | here | times as fast |\n|" + " --- |" * 6)
    for key, values in ratios.items():
        spread = f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
        print(f"| {' | '.join(key)} | {statistics.median(here[key]) * 1e6:.0f} µs | {spread} |")


if __name__ == "__main__":
    main()

"""`python -m benchmarks.compare` measures this project, engine and server, on the demo model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKS = ("decode:8:64", "prompt:16", "batch:2:4:4", "http:2:8:4")


@pytest.mark.slow
@pytest.mark.usefixtures("model_path")
def test_comparison_of_this_project_with_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.compare", "--only", "cpu_backend"]
    command += ["--work", *WORKS, "--rounds", "1", "--dtype", "float32"]
    command += ["--python", f"cpu_backend={sys.executable}", "--out", str(tmp_path)]
    # The comparison's modules come from the folder, its runners' from what is installed.
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=600)

    (model,) = json.loads((tmp_path / "results.json").read_text())["models"]
    assert model["failures"] == []
    medians = {figure["metric"]: figure["median"] for figure in model["figures"]}
    assert medians.keys() == {
        *WORKS,
        *("first_token", "construct", "memory", "pss", "server_first_token", "server_memory"),
    }
    assert all(value > 0 for value in medians.values())
    assert medians["first_token"] > medians["construct"]
    assert (tmp_path / "results.md").read_text().count("Paris") == 1
    (record, _) = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    assert record["greedy"]["text"].startswith(" Paris.")
    assert len(record["works"]["prompt:16"]["values"]) == 3


def test_comparison_needs_the_standard_library_alone() -> None:
    command = [sys.executable, "-S", "-m", "benchmarks.compare", "--help"]  # no site-packages
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True)

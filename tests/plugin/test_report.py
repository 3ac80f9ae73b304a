"""What a run of several parts leaves out for lack of time, it says (tests/report.py)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import report

TEST = "tests/plugin/test_targets.py"


@pytest.fixture(params=[True, False], ids=["late", "in time"])
def late(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setenv(report.FILE, str(tmp_path / "report"))
    monkeypatch.setenv(report.UNTIL, str(time.time() + (-1 if request.param else 600)))
    return bool(request.param)


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_no_part_begins_when_the_time_is_over(late: bool) -> None:
    out = run("tests.report", "run", "a part", "echo", "it ran")
    assert ("it ran" not in out) == late
    assert ("  a part        all" in report.tables()) == late


def test_no_test_begins_when_the_time_is_over(late: bool) -> None:
    out = run("pytest", "-q", "-p", "no:cacheprovider", TEST)
    assert ("SKIPPED" in out and "passed" not in out) == late
    _, _, left_out = "\n".join(report.tables()).partition("Not run for lack of time")
    assert (TEST in left_out) == late

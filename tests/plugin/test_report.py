"""What a run of several parts leaves out for lack of time, it says (tests/report.py)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests import report


@pytest.mark.parametrize("late", [True, False])
def test_no_part_begins_when_the_time_is_over(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(report.FILE, str(tmp_path / "report"))
    monkeypatch.setenv(report.UNTIL, str(time.time() + (-1 if late else 600)))
    assert report.is_late("a part") == late
    assert ("Not run for lack of time" in "\n".join(report.tables())) == late

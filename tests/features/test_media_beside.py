"""Other requests go on while a medium is encoded, and nothing of any answer changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NO_GREENLET = "import sys; sys.modules['greenlet'] = None; "
RUN = "from pathlib import Path; from tests.features.media_beside import main; "


def found(name: str, folder: Path, before: str = "") -> tuple[dict[str, Any], str]:
    """What media_beside prints, and its log."""
    code = f"{before}{RUN}main({name!r}, Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, done.stdout + done.stderr


# The tower of each has more than so many modules, and a step of the text lies between two of them.
@pytest.mark.parametrize(
    ("name", "steps"),
    [("Idefics3ForConditionalGeneration", 20), ("Qwen2AudioForConditionalGeneration", 20)],
)
def test_a_text_goes_on(name: str, steps: int, tmp_path: Path) -> None:
    result, _ = found(name, tmp_path)
    assert result["meanwhile"] > steps
    beside, again, within = result["answers"]
    assert beside == again == within
    # Each is encoded once, also where it is asked for again.
    assert result["media"] > 1
    assert result["encodings"] == [result["media"]] * 2
    assert result["after an abort"] == result["other within a step"]
    assert result["left"] == 0


def test_without_greenlet_they_wait(tmp_path: Path) -> None:
    result, log = found("Idefics3ForConditionalGeneration", tmp_path, NO_GREENLET)
    assert "because the package greenlet is missing: pip install greenlet." in log
    assert result["meanwhile"] <= 2
    beside, again, within = result["answers"]
    assert beside == again == within

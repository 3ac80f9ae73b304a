"""Folders that cannot be written, and a user whom the system does not know."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.e2e import engine

NO_HOME = ["env", "-u", "HOME", "-u", "XDG_CACHE_HOME", "-u", "XDG_CONFIG_HOME"]
# What the kernel lets root do whatever a file's mode says; taken away, root is as others are.
ALL_FILES = "-dac_override,-dac_read_search"
USER = "23456"  # of no name; may read what lies below root's home, as its own would lie elsewhere
STRANGER = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"]
STRANGER += ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]


def job(model: str) -> dict[str, object]:
    return {
        "engine": {"model": model, "max_model_len": 256},
        "batches": [[[504, 3575, 282, 4649, 314]]],
        "sampling": {"max_tokens": 3},
    }


def read_only(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o555)
    return folder


@pytest.mark.needs("setpriv")
def test_home_and_current_folder_may_be_read_only(model_path: str, tmp_path: Path) -> None:
    home, folder = read_only(tmp_path / "home"), read_only(tmp_path / "folder")
    program = [*NO_HOME, f"HOME={home}"]
    if os.geteuid() == 0:
        program += ["setpriv", f"--bounding-set={ALL_FILES}", f"--inh-caps={ALL_FILES}"]
    [[answer]], _ = engine.run_by(program, job(model_path), folder)
    assert len(answer["tokens"]) == 3
    assert not [*home.iterdir(), *folder.iterdir()]


@pytest.mark.slow
@pytest.mark.needs("root", "setpriv")
def test_user_may_have_neither_name_nor_home(model_path: str, tmp_path: Path) -> None:
    folder = read_only(tmp_path / "folder")
    # Short, as names of sockets must be, and below no folder of root's own, as TMPDIR may be.
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        Path(temporary).chmod(0o777)
        program = [*NO_HOME, f"TMPDIR={temporary}", *STRANGER]
        [[answer]], _ = engine.run_by(program, job(model_path), folder)
    assert len(answer["tokens"]) == 3

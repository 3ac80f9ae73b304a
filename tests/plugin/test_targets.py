"""The table of instruction sets: its readers agree, and the docs show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import report, targets
from tests.targets import ROOT, TARGETS


def test_docs_show_the_table() -> None:
    """`python -m tests.targets docs` prints it."""
    assert f"\n\n{targets.docs()}\n\n" in (ROOT / "docs/adding_a_target.md").read_text()


def test_readme_names_every_target() -> None:
    [line] = re.findall(r"^\| `CPU_BACKEND_ISA` .*$", (ROOT / "README.md").read_text(), re.M)
    assert set(TARGETS) <= set(re.findall(r"`(\w+)`", line))


def test_no_entry_escapes_the_reader() -> None:
    text = targets.TABLE.read_text()
    assert len(TARGETS) == len(re.findall(r"^TARGET\(", text, re.MULTILINE))
    known = set(re.findall(r"^FEATURE\((\w+),", text, re.MULTILINE))
    assert {name for target in TARGETS.values() for name in target.features} == known


def test_a_base_stands_before_what_extends_it() -> None:
    names = ["baseline", *TARGETS]
    for target in TARGETS.values():
        assert names.index(target.base) < names.index(target.name)
        base = TARGETS.get(target.base, target)
        assert base.architecture in ("", target.architecture)
        assert ";" not in target.what


def ran_on(build: Path, target: str, processor: str, emulator: str = "") -> str:
    """What is said of a build folder whose tests ran on this target."""
    log = build / "Testing/Temporary/LastTest.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"ok   vec/test  3 checks\nran on target {target}\n")
    (build / "CMakeCache.txt").write_text(
        f"CMAKE_CROSSCOMPILING_EMULATOR:UNINITIALIZED={emulator}\n"
        f"CMAKE_SYSTEM_PROCESSOR:UNINITIALIZED={processor}\n"
    )
    return targets.ran(build)


def test_a_run_of_the_kernel_tests_says_where_they_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(report.FILE, str(tmp_path / "report"))
    said = ran_on(tmp_path / "native", "scalar", "s390x")
    assert said == "natively: scalar; only compiled: vxe"
    said = ran_on(tmp_path / "emulated", "vxe", "s390x", "/usr/bin/qemu-s390x-static")
    assert said == "emulated by qemu-s390x: vxe on max,vxeh2=off; only compiled: scalar"
    lines = list(report.tables())
    assert "  scalar  natively" in lines
    assert "  vxe     qemu-s390x (max,vxeh2=off)" in lines


def test_a_target_that_was_not_tested_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(report.FILE, str(tmp_path / "report"))
    ran_on(tmp_path / "native", "scalar", "s390x")
    assert "  vxe     only compiled" in report.tables()

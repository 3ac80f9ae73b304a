"""`info --check` as it is run: the report of this machine, with parts of it missing or wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpu_backend import doctor
from cpu_backend.doctor import processor
from cpu_backend.doctor.finding import note, ok, problem, told


def test_report_has_a_line_for_each_finding_and_a_summary() -> None:
    findings = [ok("a", "is well"), note("bcd", "is small", "take more"), problem("e", "no", "yes")]
    assert doctor.as_text(findings).splitlines() == [
        "ok       a    is well",
        "note     bcd  is small: take more",
        "problem  e    no: yes",
        "1 problem, 1 note",
    ]
    assert json.loads(doctor.as_json(findings))[1] == {
        "level": "note",
        "about": "bcd",
        "says": "is small",
        "way_out": "take more",
    }
    assert told("x", "It is wrong: mend it.") == problem("x", "It is wrong", "mend it")


def test_area_that_cannot_be_examined_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "read", lambda: 1 / 0)
    said = {finding.about: finding.says for finding in doctor.examine()}
    assert "ZeroDivisionError" in said["processor"]
    assert "port" in said


@pytest.mark.parametrize("arguments", [["info"], ["info", "--check"], ["info", "--plan"], ["host"]])
def test_reports_may_be_read_in_part(arguments: list[str]) -> None:
    name, *options = arguments
    command = [sys.executable, "-m", f"cpu_backend.{name}", *options]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert done.returncode == -signal.SIGPIPE
    assert "Error" not in done.stderr


def check(
    *program: str, code: str = "", **environ: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, str]]]:
    """This machine's report as data; ``code`` runs first."""
    script = f"{code}\nimport sys; from cpu_backend import info; sys.exit(info.main())"
    command = [*program, sys.executable, "-c", script, "--check", "--json"]
    env = {**os.environ, **environ}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.stdout, done.stderr
    return done, json.loads(done.stdout)


def cpu_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def test_this_machine_is_examined_within_seconds() -> None:
    before, start = cpu_seconds(), time.monotonic()
    done, report = check()
    used, passed = cpu_seconds() - before, time.monotonic() - start
    assert used < 6, f"{used} s of CPU, {passed} s in all"
    assert done.returncode == 0, report
    assert not done.stderr
    said = {finding["about"] for finding in report}
    assert said >= {"vllm", "torch", "plugin", "changes", "settings", "threads", "cpus", "numa"}
    assert said >= {"memory", "models", "clock", "isa", "openmp", "disk", "shm", "port"}


MISSING = """
import sys, importlib.abc
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("libtorch.so: cannot open shared object file")
sys.meta_path.insert(0, Missing())
"""


def test_broken_torch_is_said_without_a_traceback() -> None:
    done, report = check(code=MISSING)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    problems = [finding for finding in report if finding["level"] == "problem"]
    assert [finding["about"] for finding in problems] == ["torch", "library"]
    assert "cannot open shared object file" in problems[0]["says"]


def test_missing_host_is_said_without_a_traceback(tmp_path: Path) -> None:
    """In an environment that has all but the host."""
    for entry in Path(doctor.__path__[0]).parents[1].iterdir():
        if not re.match(r"vllm(-\d|$)", entry.name):
            (tmp_path / entry.name).symlink_to(entry)
    path = f"[p for p in sys.path if 'site-packages' not in p] + [{str(tmp_path)!r}]"
    done, report = check(code=f"import sys; sys.path[:] = {path}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert any("no vLLM is installed" in finding["says"] for finding in report)
    assert not any("could not be examined" in finding["says"] for finding in report)


def test_wrong_setting_ends_with_1() -> None:
    done, report = check(CPU_BACKEND_ISA="avx1024", VLLM_CPU_KVCACHE_SPACE="lots")
    assert done.returncode == 1
    found = {f["about"]: f["says"] for f in report if f["level"] == "problem"}
    assert "VLLM_CPU_KVCACHE_SPACE='lots'" in found["settings"]
    assert "CPU_BACKEND_ISA=avx1024" in found["library"]

"""Fixtures of all tests.

Only what an optional tool is needed for is skipped (tests/tools.py); everything else that a test
needs and lacks is an error.
"""

from __future__ import annotations

import faulthandler
import logging
import operator
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any

import pytest
import torch

from tests import report, tools

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def pytest_configure(config: pytest.Config) -> None:
    """A worker of pytest-xdist has temporary files, and with them reservations of CPUs and of
    memory, of its own: it is a machine of its own to what it starts."""
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        folder = tempfile.mkdtemp(prefix=f"{worker}-")
        os.chmod(folder, 0o1777)  # like /tmp: tests run servers as other users
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["TMPDIR"] = tempfile.tempdir = folder


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A worker takes whole files, whose tests share engines, and of Ray's, which share a cluster,
    all."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/ray_serve" if file.startswith("tests/ray_serve/") else file

    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """CPU_BACKEND_TEST_SHARE=K/N leaves the K-th of N shares, which are the same in every run."""
    if share := os.environ.get("CPU_BACKEND_TEST_SHARE"):
        number, shares = map(int, share.split("/"))
        ours = [zlib.crc32(item.nodeid.encode()) % shares == number - 1 for item in items]
        config.hook.pytest_deselected(items=[*compress(items, map(operator.not_, ours))])
        items[:] = compress(items, ours)


def mostly_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """The cases as parameters; all but the ``quick`` ones are left to ``make test-all``."""
    cases = list(cases)
    assert set(quick) <= set(cases)
    return [
        case
        if case in quick
        else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow)
        for case in cases
    ]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@pytest.fixture(params=DTYPES, ids=dtype_name)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Every storage type of the kernels."""
    result: torch.dtype = request.param
    return result


@pytest.fixture(scope="session")
def model_path() -> str:
    """The demo model, made once in the user's cache."""
    command = [sys.executable, "-m", "cpu_backend.demo_model"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def host_log_reaches_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host keeps its log from the root logger, where pytest listens."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)


@pytest.fixture(autouse=True)
def random_numbers_repeat() -> None:
    """Torch's own numbers too are the same in every run: no test fails once in a hundred runs."""
    torch.manual_seed(20)


# What one process of tests may take: others run beside it, and some look for free memory.
MOST_MEMORY = 10 << 30


@pytest.fixture(autouse=True)
def memory_is_left_to_others() -> Iterator[None]:
    """A test that makes its process take most of a machine fails itself, and not one beside it."""
    before = _peak()
    yield
    assert before > MOST_MEMORY or _peak() <= MOST_MEMORY, f"took {_peak() >> 20} MiB"


def _peak() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.fixture
def seeded() -> torch.Generator:
    """Random numbers that are the same in every run and independent of other tests."""
    return torch.Generator().manual_seed(20)


def pytest_report_header() -> str:
    isa = os.environ.get("CPU_BACKEND_ISA") or "the best"
    return f"instruction set: {isa}; threads: {torch.get_num_threads()}"


_skipped: Counter[str] = Counter()  # tests, by the tool they lacked
_seconds: Counter[str] = Counter()  # by file
_late: Counter[str] = Counter()  # tests that found no time, by file


def pytest_runtest_setup(item: pytest.Item) -> None:
    if report.is_late():
        _late[item.location[0]] += 1
        pytest.skip("the time for this run is over")
    for mark in item.iter_markers("needs"):
        for tool in mark.args:
            if not tools.is_there(tool):
                if tools.must_be_there(tool):
                    pytest.fail(tools.sentence(tool), pytrace=False)
                _skipped[tool] += 1
                pytest.skip(tools.sentence(tool))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = time.monotonic()
    result = yield
    _seconds[item.location[0]] += time.monotonic() - start
    return result


END_SECONDS = 180


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A process that tests have left and that this one waits for shows where, and fails the run; a
    # worker of pytest-xdist waits for the others.
    if not hasattr(session.config, "workerinput"):
        faulthandler.dump_traceback_later(END_SECONDS, exit=True)
    for tool, tests in _skipped.items():
        report.add("skip", tool=tool, tests=tests)
    for name, tests in _late.items():
        report.add("late", name=name, tests=tests)
    for name, seconds in _seconds.items():
        report.add("file", name=name, seconds=seconds)

"""Changes to the host: each declared with its reasons, held against the host before any is made."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cpu_backend import activation, host
from cpu_backend.host import seam, source

HEADINGS = ("What", "Why", "Since", "Until")
FILES = sorted(Path(host.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_change_says_what_it_is_and_why(path: Path) -> None:
    if path.stem in ("__init__", "__main__", "seam", "source", "on_load"):
        return
    text = importlib.import_module(f"cpu_backend.host.{path.stem}").__doc__ or ""
    found = re.findall(r"^(\w+): \S", text, re.MULTILINE)
    assert tuple(found) == HEADINGS


def test_the_installed_host_has_all_that_is_relied_on() -> None:
    assert host.check() == ()


def test_everything_that_is_changed_is_declared_with_a_symbol() -> None:
    host.declare()
    assert len(seam.changes()) > 30
    for change in seam.changes():
        assert change.symbols, change.file
    assert len(list(seam.relied_on(source.host()))) > 150


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.30.0", "0.31.0"])
def test_another_host_that_is_supported_has_all_that_is_relied_on(
    release: str, tmp_path: Path
) -> None:
    """By its sources alone; 0.33 is installed and used by tests/try_host.sh."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(tmp_path)]
    subprocess.run([*pip, f"vllm=={release}"], check=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path, [n for n in archive.namelist() if n.endswith(".py")])
    host.declare()
    assert seam.differences(source.Source(tmp_path / "vllm")) == []


def test_a_host_does_not_differ_from_itself() -> None:
    command = [sys.executable, "-m", "tools.host_diff", "installed", "installed", "--names"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert re.fullmatch(r"0 of \d{3,} definitions differ\.\n", out)


def test_a_change_is_of_the_hosts_that_it_names(small: source.Source) -> None:
    small.release = (0, 32)
    assert small in seam.Hosts()
    assert small in seam.Hosts(since=(0, 32), until=(0, 33))
    assert small not in seam.Hosts(since=(0, 33))
    assert small not in seam.Hosts(until=(0, 32))


def test_the_release_of_a_host_is_what_its_package_says(small: source.Source) -> None:
    assert small.release > (1000, 0)
    version = "__version__: str\n__version__ = version = '0.31.2+cpu'\n"
    (small.root / "_version.py").write_text(version)
    assert source.Source(small.root).release == (0, 31)


CODE = '''
import a, b
from vllm.x import (
    first,
    second as other,
)

LIMIT: int = 3

def run(
    one: int,
    *rest: str, two: dict[str, int] = {"(": 1},
    **more,
) -> None:
    """Text
at the margin is no code: but this is."""

class Engine(
    Base,
):
    kind = 1

    def __init__(self) -> None:
        self.ready: bool = False

    @staticmethod
    async def start(self, one, /, two, *, three=None): ...

class Other:
    def stop(self): ...
'''


@pytest.fixture
def small(tmp_path: Path) -> source.Source:
    """A host of one module, vllm.x, and one package, vllm.y."""
    (tmp_path / "x.py").write_text(CODE)
    (tmp_path / "y").mkdir()
    (tmp_path / "y/__init__.py").write_text("value = 1\n")
    return source.Source(tmp_path)


@pytest.mark.parametrize(
    ("symbol", "difference"),
    [
        ("run(one, *rest, two, **more)", ""),
        ("run(one, ...)", ""),
        ("run", ""),
        ("LIMIT", ""),
        ("first", ""),
        ("Engine.kind", ""),
        ("Engine.ready", ""),
        ("Engine.start(self, two, ...)", "has vllm.x.Engine.start(self, one, /, two, *, three)"),
        ("Engine.start(self, one, /, two, ...)", ""),
        ("run(one, two, ...)", "has vllm.x.run(one, *rest, two, **more) in place of run(one, two"),
        ("walk(one)", "has no function vllm.x.walk"),
        ("Engine.stop(self)", "has no function vllm.x.Engine.stop"),
        ("Engine.stop", "has no vllm.x.Engine.stop"),
        ("None_such.stop", "has no vllm.x.None_such.stop"),
        ("thing", "has no vllm.x.thing"),
    ],
)
def test_a_symbol_is_found_in_the_source(
    small: source.Source, symbol: str, difference: str
) -> None:
    said = small.difference("vllm.x", symbol)
    assert said.startswith(difference) if difference else said == ""


def test_a_module_that_has_moved_is_found_by_either_name(small: source.Source) -> None:
    assert small.difference(("vllm.z.old", "vllm.y"), "value") == ""
    assert small.first(("vllm.z.old", "vllm.y")) == "vllm.y"
    assert small.difference("vllm.z", "value") == "has no module vllm.z"


class Owner:
    def plain(self) -> str:
        """Said."""
        return "plain"

    @staticmethod
    def static(word: str) -> str:
        return word

    @classmethod
    def of_class(cls, word: str) -> str:
        return f"{cls.__name__} {word}"


def twice(original: Callable[..., str]) -> Callable[..., str]:
    def replacement(*args: Any) -> str:
        return original(*args) * 2

    return replacement


def test_a_replacement_is_of_its_originals_kind() -> None:
    for name in ("plain", "static", "of_class"):
        seam.replace(SimpleNamespace(Owner=Owner), f"Owner.{name}", twice)
    assert Owner().plain() == "plainplain"
    assert Owner.plain.__doc__ == "Said."
    assert Owner.static("a") == Owner().static("a") == "aa"
    assert Owner.of_class("a") == "Owner aOwner a"


MODELS = """
import sys
from cpu_backend import host
host.prepare_process()
host.prepare_model()
from vllm.model_executor.models.registry import ModelRegistry
names = {getattr(model, "module_name", "") for model in ModelRegistry.models.values()}
print(len(names), *names & sys.modules.keys())
"""


def test_no_model_is_imported_for_its_change() -> None:
    """A change waits until the host imports what it changes, as it does for the model it serves:
    another may need what this machine does not have."""
    done = subprocess.run(
        [sys.executable, "-c", MODELS], capture_output=True, text=True, timeout=120, check=True
    )
    known, *imported = done.stdout.split()
    assert int(known) > 100
    assert not imported


FUNCTION = """
from cpu_backend import host
host.prepare_process()
from numba import njit
@njit(cache=True)
def double(number):
    return 2 * number
print(double(21))
"""


def test_numba_goes_on_without_a_folder(tmp_path: Path) -> None:
    """Code from a string has none beside it, and what is no folder cannot be a user's cache."""
    file = tmp_path / "no_folder"
    file.touch()
    environment = {**os.environ, "XDG_CACHE_HOME": str(file), "NUMBA_CACHE_DIR": ""}
    done = subprocess.run(
        [sys.executable, "-c", FUNCTION], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["42"], done.stderr


THREADS = """
import os
from cpu_backend import host
host.prepare_process()
from numba import config, njit, prange, set_num_threads
@njit(parallel=True)
def double(numbers):
    for i in prange(len(numbers)):
        numbers[i] *= 2
import numpy
ones = numpy.ones(3)
set_num_threads(1)
double(ones)
begun = config.NUMBA_NUM_THREADS
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.environ["NUMBA_OPT"] = "2"
double(ones.astype("float32"))
print(config.NUMBA_NUM_THREADS == begun)
"""


def test_numba_goes_on_where_its_thread_is_bound() -> None:
    """It compiles again for a type that it has not seen, with a variable changed."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True"], done.stderr


def test_a_host_with_one_difference_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import cpu_backend

    said = "has vllm.x.run(two) in place of run(one)"
    monkeypatch.setattr(host, "check", lambda: (said, "has no module vllm.y"))
    monkeypatch.setattr(host, "prepare_process", lambda: pytest.fail("nothing may be changed"))
    activation.decide.cache_clear()
    try:
        assert cpu_backend.register() is None
    finally:
        activation.decide.cache_clear()
    [record] = caplog.records
    assert said in record.message
    assert "steps aside" in record.message
    assert "1 more" in record.message


def test_the_check_takes_milliseconds() -> None:
    """Beside what a start takes, whatever else the machine does: best of several."""
    host.declare()

    def once() -> float:
        begun = time.process_time()
        seam.differences(source.Source(source.host().root))
        return time.process_time() - begun

    assert min(once() for _ in range(5)) < 0.5


def test_the_list_can_be_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cpu_backend.host"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "orphans: A process of the engine ends" in done.stdout
    changed = re.findall(r"^Upstream: .*/blob/v[\d.]+/vllm/(\S+)$", done.stdout, re.MULTILINE)
    assert len(changed) > 30
    assert all((source.host().root / path).is_file() for path in changed)

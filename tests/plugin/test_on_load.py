"""Changes to modules that are imported later, right now, or already."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from cpu_backend.host.on_load import when_loaded

NAMES = (f"loaded_by_this_test_{number}" for number in itertools.count())
CODE = "def say():\n    return 'original'\n"
# As a module of the host does whose imports make it look for its platform.
ARMS = "import {test}\n{test}.change(__name__)\n"


def change(name: str) -> None:
    """Have the module's function say something else."""

    def act(module: Any) -> None:
        module.say = lambda: "changed"

    when_loaded(name, act)


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a module that can be imported and is not."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "this_test", sys.modules[__name__])
    name = next(NAMES)
    (tmp_path / f"{name}.py").write_text(CODE)
    return name


def taken(name: str) -> str:
    """What a user of ``from NAME import say`` gets, with nothing imported in between."""
    names: dict[str, Any] = {}
    exec(f"from {name} import say", names)
    return str(names["say"]())


def test_before_it_is_imported(name: str) -> None:
    change(name)
    assert taken(name) == "changed"


def test_after_it_was_imported(name: str) -> None:
    importlib.import_module(name)
    change(name)
    assert taken(name) == "changed"


def test_while_it_is_imported(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(ARMS.format(test="this_test") + CODE)
    assert taken(name) == "changed"


def test_while_an_import_fails_that_succeeds_later(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(ARMS.format(test="this_test") + "raise ValueError('not yet')\n")
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module(name)
    path.write_text(f"{CODE}\n# now it can be imported\n")
    importlib.invalidate_caches()
    assert taken(name) == "changed"

"""Changes to modules of the host that it has not imported yet, or not to the end."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

Action = Callable[[Any], None]


def when_loaded(name: str, action: Action) -> None:
    """Run ``action(module)`` on the module ``name``, now or as soon as it will have been imported,
    before whoever imports it takes a name from it."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None:
        sys.meta_path.insert(0, _ActOnLoad(name, action))
    elif getattr(spec, "_initializing", False):
        spec.__class__ = _BeingLoaded
        spec.__dict__.setdefault("actions", []).append(action)
    else:
        action(sys.modules[name])


class _BeingLoaded(ModuleSpec):
    """Of a module whose code is running: Python says here when that has ended."""

    @property
    def _initializing(self) -> bool:
        return bool(self.__dict__["_initializing"])

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        if not value:
            for action in self.__dict__.pop("actions", ()):
                when_loaded(self.name, action)  # now, or once more if it has failed


class _ActOnLoad(importlib.abc.MetaPathFinder):
    """Runs ``action(module)`` right after ``name`` has been executed."""

    def __init__(self, name: str, action: Action) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: Any) -> None:
                execute(module)
                self._action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec

"""Changes to modules of the host that it has not imported yet, or not to the end."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def when_loaded(name: str, action: Callable[[Any], None]) -> None:
    """Run ``action(module)`` on the module ``name``, now or when it will have been imported."""
    if _is_loaded(name):
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _ActOnLoad(name, action))


def _is_loaded(name: str) -> bool:
    """Whether the module has been executed to its end."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


class _ActOnLoad(importlib.abc.MetaPathFinder):
    """Runs ``action(module)`` right after ``name`` has been executed; where that had begun before,
    at the next import of any module, so before others take the names that are to change."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self._name, self._action = name, action

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if _is_loaded(self._name):
            sys.meta_path.remove(self)
            self._action(sys.modules[self._name])
            return None
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

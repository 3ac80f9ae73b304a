"""A model whose class imports a package that is not installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cpu_backend import compat
from cpu_backend.errors import ConfigError


class Model:
    def __init__(self, package: str) -> None:
        self.package = package

    def inspect_model_cls(self) -> str:
        if self.package == "present":
            return "info"
        if self.package == "broken":
            raise ValueError("something else")
        raise ModuleNotFoundError(f"No module named {self.package!r}", name=self.package)


@pytest.fixture
def inspect() -> Any:
    registry = SimpleNamespace(_try_inspect_model_cls=lambda architecture, model: None)
    compat.inspect_models_here(registry)
    return registry._try_inspect_model_cls


def test_it_is_named_with_the_way_to_get_it(inspect: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Xyz needs the Python package torchvision, .*0\.28\.0"):
        inspect("Xyz", Model("torchvision"))
    with pytest.raises(ConfigError, match=r"package abc, .*`pip install abc`"):
        inspect("Xyz", Model("abc.def"))


def test_other_outcomes_are_the_hosts(inspect: Any) -> None:
    assert inspect("Xyz", Model("present")) == "info"
    assert inspect("Xyz", Model("broken")) is None

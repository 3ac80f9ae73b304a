"""What runs by default: a few different architectures, or all with ZOO=all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from tests.zoo.build import Spec
from tests.zoo.server import Zoo
from tests.zoo.table import agrees


def names(specs: Iterable[Spec]) -> list[Any]:
    """Those of the selection, as parameters of a test."""
    everything = os.environ.get("ZOO") == "all"
    return [
        pytest.param(spec.name, marks=pytest.mark.needs(*spec.needs)) if spec.needs else spec.name
        for spec in specs
        if spec.selected or everything
    ]


def check(zoo: Zoo, specs: Iterable[Spec], name: str) -> None:
    """Fails unless the architecture has the outcome that its Spec names."""
    outcome = zoo.examine(name)
    spec = next(spec for spec in specs if spec.name == name)
    assert agrees(spec, outcome), f"{outcome.state}: {outcome.note}\n{outcome.where}"

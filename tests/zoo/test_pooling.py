"""Pooling models: right, refused or the host's fault, as docs/models.md says."""

from __future__ import annotations

import pytest

from tests.zoo import selection
from tests.zoo.pooling import SPECS
from tests.zoo.server import Zoo


@pytest.mark.parametrize("name", selection.names(SPECS))
def test_outcome(zoo: Zoo, name: str) -> None:
    selection.check(zoo, SPECS, name)

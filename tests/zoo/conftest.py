"""One zoo process for all kinds of models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.zoo.server import Zoo


@pytest.fixture(scope="session")
def zoo() -> Iterator[Zoo]:
    """Answers for architectures by name."""
    with Zoo() as process:
        yield process

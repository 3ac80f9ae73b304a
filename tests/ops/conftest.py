"""The ops need the native library, and tests must not leak a number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cpu_backend import native, ops


@pytest.fixture(scope="session", autouse=True)
def library() -> native.Library:
    """Loaded once; a missing library or a wrong CPU_BACKEND_ISA fails every test here."""
    return ops.load()


@pytest.fixture
def threads() -> Iterator[None]:
    """Puts torch's number of threads back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)

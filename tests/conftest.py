"""Fixtures of all tests.  Nothing is skipped: what a test needs and lacks is an error."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


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


@pytest.fixture
def seeded() -> torch.Generator:
    """Random numbers that are the same in every run and independent of other tests."""
    return torch.Generator().manual_seed(20)


def pytest_report_header() -> str:
    isa = os.environ.get("CPU_BACKEND_ISA") or "the best"
    return f"instruction set: {isa}; threads: {torch.get_num_threads()}"

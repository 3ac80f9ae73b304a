"""Logging that is set up again: levels change, and are forgotten once."""

from __future__ import annotations

import logging

import pytest
from vllm import logger as host_logger


def test_levels_change_and_are_forgotten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = logging.Logger.manager
    forget, walks = type(manager)._clear_cache, []  # type: ignore[attr-defined]

    def counting(self: logging.Manager) -> None:
        walks.append(self)
        forget(self)

    monkeypatch.setattr(type(manager), "_clear_cache", counting)
    some = logging.getLogger("vllm.some.logger.of.this.test")
    logging.getLogger("vllm.another")
    for level, enabled in (("WARNING", False), ("DEBUG", True), ("INFO", False)):
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", level)
        walks.clear()
        host_logger._configure_vllm_root_logger()
        assert some.isEnabledFor(logging.DEBUG) is enabled
        assert len(walks) <= 3  # its own, and of two loggers that the host silences
    some.setLevel(logging.DEBUG)
    assert some.isEnabledFor(logging.DEBUG)

"""Logging is set up without a walk over all loggers for each of the host's.

What: while ``_configure_vllm_root_logger`` runs, what loggers remember of their levels is forgotten
    once, at its end.
Why: Python's logging forgets it for every logger of the process each time that the level of one is
    set.  The host has hundreds beside hundreds of its libraries', and sets up logging in the server
    and in each process of the engine.
Since: 0.30
Until: Python or the host does so.
"""

from __future__ import annotations

import logging
from typing import Any

from cpu_backend.host.seam import patch


@patch("vllm.logger", "_configure_vllm_root_logger")
def forget_once(original: Any) -> Any:
    """In this process."""

    def configure(*args: Any, **kwargs: Any) -> None:
        manager: Any = logging.Logger.manager
        manager._clear_cache = lambda: None
        try:
            original(*args, **kwargs)
        finally:
            del manager._clear_cache
            manager._clear_cache()

    return configure

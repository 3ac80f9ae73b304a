"""Functions of numba stay uncached for users who can write neither the host's folder nor a home.

What: numba's ``Dispatcher.enable_caching`` goes on where it finds no folder.
Why: the host has functions with ``cache=True`` beside its models (Kimi, Inkling), for which numba
    ends the import there.  Images run with any user id are such places.
Since: 0.32
Until: the host or numba does so.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.on_load import when_loaded
from cpu_backend.host.seam import replace


def make_optional() -> None:
    """In this process, and in its forks."""
    when_loaded("numba.core.dispatcher", _change)


def _change(dispatcher: Any) -> None:
    replace(dispatcher, "Dispatcher.enable_caching", _or_none)


def _or_none(original: Any) -> Any:
    def enable_caching(self: Any) -> None:
        try:
            original(self)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise

    return enable_caching

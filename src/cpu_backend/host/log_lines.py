"""The start-up log says nothing of a compiler that this backend does not use.

What: three lines of ``vllm.config.vllm``'s are not written.
Why: they warn that *the user* has switched torch.compile off and loses by it, and name an
    environment variable that nobody set: it is this backend that does (see platform.py), and
    says once, with the threads, that there is no compiler at run time.
Since: 0.32
Until: the host does not warn where the platform has chosen.
"""

from __future__ import annotations

import logging
from typing import Any

from cpu_backend.host.seam import change

ABOUT_COMPILING = (
    "TORCH_COMPILE_DISABLE is set",
    "Inductor compilation was disabled by user settings",
    "Cudagraph mode %s is not compatible with compilation mode",
)


@change("vllm.config.vllm", "logger")
def leave_out(module: Any) -> None:
    """By their beginnings."""
    module.logger.addFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(ABOUT_COMPILING)

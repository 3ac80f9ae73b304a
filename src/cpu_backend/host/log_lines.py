"""The start-up log says nothing of a compiler that this backend does not use, nor of each weight.

What: three lines of ``vllm.config.vllm``'s are not written, nor those of
    ``vllm.model_executor.models.utils`` of weights that are rounded to the server's dtype, nor that
    this backend's own loaders are registered.
Why: the three warn that *the user* has switched torch.compile off and loses by it, and name an
    environment variable that nobody set: it is this backend that does (see platform.py), and
    says once, with the threads, that there is no compiler at run time.  The others are a warning
    for every weight of a checkpoint in another dtype, of which the host has said already that it
    casts it.  That there is a loader says nothing of the one that is used.
Since: 0.32
Until: the host does not warn where the platform, or the user, has chosen.
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

SERVED = {"torch.float32", "torch.bfloat16", "torch.float16"}


@change("vllm.config.vllm", "logger")
def leave_out(module: Any) -> None:
    """By their beginnings."""
    module.logger.addFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(ABOUT_COMPILING)


@change("vllm.model_executor.model_loader", "logger")
def leave_loaders_out(module: Any) -> None:
    """By their class, the first of the record's arguments."""
    module.logger.addFilter(_is_no_loader_of_ours)


def _is_no_loader_of_ours(record: logging.LogRecord) -> bool:
    if not str(record.msg).startswith("Registered model loader"):
        return True
    assert isinstance(record.args, tuple)
    return not getattr(record.args[0], "__module__", "").startswith("cpu_backend.")


@change("vllm.model_executor.models.utils", "logger")
def leave_casts_out(module: Any) -> None:
    """From one floating-point type that models are served in to another."""
    module.logger.addFilter(_is_no_cast)


def _is_no_cast(record: logging.LogRecord) -> bool:
    if not str(record.msg).startswith("Attempted to load weight %s with dtype"):
        return True
    assert isinstance(record.args, tuple)
    return not {str(dtype) for dtype in record.args[1:]} <= SERVED

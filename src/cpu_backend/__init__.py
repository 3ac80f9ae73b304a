"""CPU backend for vLLM: a platform plugin.

The host calls :func:`register` in every process to ask whether this platform applies, and
:func:`register_general` before a configuration is made; torch calls :func:`torch_imported` when
the host imports it.  Importing this package loads neither torch nor vllm.
"""

from __future__ import annotations

import logging

__version__ = "0.1.0"

logger = logging.getLogger("vllm.cpu_backend")  # under the host's logger, so it is seen

PLATFORM = "cpu_backend.platform.CpuBackendPlatform"


def register() -> str | None:
    """The platform class for this process, or None when the host should go on without it."""
    from cpu_backend import activation, host

    decision = activation.decide()
    if not decision.active:
        logger.log(logging.WARNING if decision.unexpected else logging.DEBUG, decision.reason)
        return None
    host.prepare_process()
    return PLATFORM


def register_general() -> None:
    """Take over where ``VLLM_TARGET_DEVICE=cpu`` made the host skip platform plugins."""
    from cpu_backend import activation, host

    if activation.decide().active:
        host.replace_in_tree_platform()


def torch_imported() -> None:
    """Begin in a server where the host has only imported torch, if that is certain already."""
    from cpu_backend import activation, host

    if host.serves() and activation.decide_early().active:
        host.defer_compiler()

"""The server's address, which it takes before the model loads, or says in one sentence why not.

What: ``create_server_socket`` and ``setup_server`` raise sentences.
Why: the host shows a traceback, and two servers that start together both believe in their port.
Since: 0.32
Until: never: manners, not a defect.
"""

from __future__ import annotations

from typing import Any

from cpu_backend.host.seam import patch
from cpu_backend.serving import preflight, sentences

LAUNCHER = "vllm.entrypoints.launchers.launcher"


@patch(LAUNCHER, "create_server_socket(addr, *, reuse_port)")
def take(original: Any) -> Any:
    """With a look at who has the address."""

    def create(addr: tuple[str, int], *, reuse_port: bool) -> Any:
        with preflight.address(*addr):
            return original(addr, reuse_port=reuse_port)

    return create


@patch(LAUNCHER, "setup_server(args, ...)")
def set_up(original: Any) -> Any:
    """In a sentence."""
    return sentences.told(*sentences.ARGUMENTS)(original)

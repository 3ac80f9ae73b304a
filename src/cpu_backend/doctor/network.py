"""The port that a server takes when none is named."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from cpu_backend.doctor.finding import Finding, note, ok, problem

PORT = 8000


@dataclass(frozen=True)
class Facts:
    """``refused`` is the error number of an attempt to take the port, 0 if it can be had."""

    port: int
    refused: int
    reason: str = ""


def read(port: int = PORT) -> Facts:
    try:
        with socket.socket() as probe:
            # As the host does: connections that have just ended do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError as error:
        return Facts(port, error.errno or errno.EIO, error.strerror or "")
    return Facts(port, 0)


def judge(facts: Facts) -> Iterator[Finding]:
    if not facts.refused:
        yield ok("port", f"{facts.port} is free")
    elif facts.refused == errno.EADDRINUSE:
        yield note("port", f"{facts.port} is taken", "choose another by --port")
    else:
        said = f"no server can listen at port {facts.port} ({facts.reason})"
        yield problem("port", said, "give this container a network")

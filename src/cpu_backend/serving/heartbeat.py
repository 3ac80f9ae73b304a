"""Whether the engine lives, asked only when somebody asks the server.

A thread of the engine process waits at a datagram socket and answers each question with how long
the engine's loop has been busy with what it does now.  The thread runs while the model computes,
because kernels do without the interpreter's lock; in a stopped process, and in one that hangs with
that lock, it does not.  So a step of minutes is no hang, an answer that does not come is one after
CPU_BACKEND_HEALTH_SECONDS, and a step that takes STEP_FACTOR times as long is one too.

Nothing runs while nobody asks.  The sockets have names in Linux's abstract namespace, made from
the address at which the engine takes requests, which both sides know; they end with the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

ANSWER = struct.Struct("<d")  # seconds
PATIENCE_SECONDS = 1.0  # of one question: a machine under load may take so long to run a thread
STEP_FACTOR = 60


def name(address: str, engine: int) -> str:
    """The socket of engine number ``engine`` of the server that sends requests from ``address``."""
    digest = hashlib.sha256(address.encode()).hexdigest()[:24]
    return f"\0cpu_backend/{digest}/{engine}"


# ---- in the engine's process ---------------------------------------------------------------------


class Answerer:
    """Answers at the sockets ``names`` with the seconds that ``busy`` tells."""

    def __init__(self, names: list[str], busy: Callable[[], float]) -> None:
        self._busy = busy
        self._sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in names]
        for own, its_name in zip(self._sockets, names, strict=True):
            own.bind(its_name)
        threading.Thread(target=self._run, name="cpu_backend-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            for asked in select.select(self._sockets, [], [])[0]:
                _, sender = asked.recvfrom(64)
                try:
                    asked.sendto(ANSWER.pack(self._busy()), socket.MSG_DONTWAIT, sender)
                except OSError:
                    continue  # whoever asked has left


# ---- in the server's process ---------------------------------------------------------------------


class Asker:
    """Knows since when the engines ``names`` do not answer."""

    def __init__(self, names: list[str], seconds: float) -> None:
        self._names = names
        self._seconds = seconds
        self._silent_since: dict[str, float] = {}

    async def hang(self) -> str:
        """What is wrong, as a sentence; empty while nothing is, or not for long enough."""
        for engine in self._names:
            begun = time.monotonic()
            busy = await self._ask(engine)
            if busy is None:
                since = self._silent_since.setdefault(engine, begun)
                if (silent := time.monotonic() - since) >= self._seconds:
                    return f"The engine process has given no sign of life for {silent:.0f} s."
                continue
            self._silent_since.pop(engine, None)
            if busy >= self._seconds * STEP_FACTOR:
                return f"The engine has been busy with one step for {busy:.0f} s."
        return ""

    async def _ask(self, engine: str) -> float | None:
        """For how long the engine has been busy; None without an answer, 0 where nobody is to be
        asked: an engine on another machine, or one that has ended, of which others tell."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
            own.setblocking(False)
            own.bind("")  # the system chooses a name, or there could be no answer
            try:
                own.sendto(b"?", engine)
            except BlockingIOError:
                return None  # earlier questions fill the queue of a process that does not run
            except OSError:
                return 0.0
            try:
                said = await asyncio.wait_for(
                    asyncio.get_running_loop().sock_recv(own, ANSWER.size), PATIENCE_SECONDS
                )
            except TimeoutError:
                return None
        return float(ANSWER.unpack(said)[0])

"""Ranks on several machines: by which network they meet, and how one learns of another's end.

Within a machine the end of a rank closes its sockets and pipes, and everybody notices.  Between
machines nothing tells: the host's message queue waits for ever, gloo for half an hour.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil

from cpu_backend.errors import ConfigError

PERIOD_S = 1.0
PATIENCE_S = 10.0  # a machine that swaps or is being moved may be silent for seconds


def use_network_towards(address: str) -> None:
    """Let gloo and the host's queues listen where this machine reaches ``address``.

    By default gloo takes the address of the machine's own name, which many systems set to the
    loopback, and the host takes the one of the default route.  What the user has set stays.
    Raises ConfigError when there is no way to ``address``.
    """
    own = _own_address(address)
    names = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(entry.address.partition("%")[0] == own for entry in addresses)
    ]
    os.environ.setdefault("VLLM_HOST_IP", own)
    if names:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", names[0])


def _own_address(address: str) -> str:
    """The address that this machine shows to ``address``; nothing is sent."""
    try:
        [(family, kind, protocol, _, target), *_] = socket.getaddrinfo(
            address, 9, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"--master-addr {address} cannot be reached from this machine ({error.strerror}): "
            "give an address of the first machine that the others can reach."
        ) from None


class Heartbeat:
    """Counts up in the store where the ranks have met, and watches the others' counts.

    ``lost(reason)`` is called once, on the thread of the heartbeat, when a rank's count stands
    still for ``patience`` seconds or the store itself, a part of rank 0, is gone.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        lost: Callable[[str], None],
        *,
        period: float = PERIOD_S,
        patience: float = PATIENCE_S,
    ) -> None:
        self._store = store.clone()  # a connection of its own: calls on one wait for each other
        self._store.set_timeout(timedelta(seconds=patience))
        self._rank, self._world_size = rank, world_size
        self._lost, self._period, self._patience = lost, period, patience
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End without a word; the other ranks will miss this one."""
        self._ended.set()

    def _run(self) -> None:
        heard = dict.fromkeys(set(range(self._world_size)) - {self._rank}, (b"", time.monotonic()))
        beats = 0
        while not self._ended.wait(self._period):
            beats += 1
            try:
                self._store.set(_key(self._rank), str(beats))
                counts = {rank: self._count(rank) for rank in heard}
            except Exception:
                # Whatever the store raises: no rank can be heard of any more.
                return self._end("rank 0, where the ranks met, has ended or cannot be reached")
            now = time.monotonic()
            for rank, (count, since) in heard.items():
                if counts[rank] != count:
                    heard[rank] = counts[rank], now
                elif now - since > self._patience:
                    return self._end(
                        f"rank {rank} has not been heard of for {self._patience:.0f} s: "
                        "its process or machine has ended or cannot be reached"
                    )

    def _count(self, rank: int) -> bytes:
        return bytes(self._store.get(_key(rank))) if self._store.check([_key(rank)]) else b""

    def _end(self, reason: str) -> None:
        if not self._ended.is_set():
            self._lost(reason)


def _key(rank: int) -> str:
    return f"cpu_backend/heartbeat/{rank}"

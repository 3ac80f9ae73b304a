"""How processes of a server wait for each other's messages."""

from __future__ import annotations

import pytest
import zmq
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

from cpu_backend import compat


@pytest.mark.parametrize("core_is_left", [False, True])
def test_readers_sleep_until_notified_where_no_core_is_left(
    core_is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "_a_core_is_left", lambda: core_is_left)
    with zmq.Context() as context:
        address = f"inproc://{core_is_left}"
        writer = SpinCondition(False, context, address)
        reader = SpinCondition(True, context, address)
        sockets = (
            writer.local_notify_socket,
            reader.local_notify_socket,
            reader.read_cancel_socket,
            reader.write_cancel_socket,
        )
        try:
            while not reader.local_notify_socket.poll(10):
                writer.notify()
            reader.record_read()  # just now, so the host would not look at the notification
            reader.wait(timeout_ms=60_000)
            assert bool(reader.local_notify_socket.poll(0)) == core_is_left
        finally:
            for socket in sockets:
                socket.close(linger=0)

"""Which network ranks on several machines use, and that one notices another's end."""

from __future__ import annotations

import os
import queue
import threading

import psutil
import pytest
from torch.distributed import TCPStore

from cpu_backend.errors import ConfigError
from cpu_backend.runtime.machines import Heartbeat, use_network_towards

FAST = {"period": 0.05, "patience": 2.0}


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)


def test_network_is_the_one_that_reaches_the_first_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    use_network_towards("127.0.0.1")
    assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"
    name = os.environ["GLOO_SOCKET_IFNAME"]
    assert "127.0.0.1" in {entry.address for entry in psutil.net_if_addrs()[name]}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "chosen")
    use_network_towards("localhost")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "chosen"


def test_address_without_a_way_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--master-addr no\.such\.host\.invalid cannot"):
        use_network_towards("no.such.host.invalid")


def test_silent_rank_is_noticed_by_the_others_and_only_then() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    lost: queue.Queue[tuple[int, str]] = queue.Queue()
    ranks = [
        Heartbeat(store, rank, 3, lambda reason, rank=rank: lost.put((rank, reason)), **FAST)
        for rank in range(3)
    ]
    with pytest.raises(queue.Empty):
        lost.get(timeout=1.5 * FAST["patience"])
    ranks[1].stop()
    found = dict(lost.get(timeout=20) for _ in range(2))
    assert sorted(found) == [0, 2]
    assert all(reason.startswith("rank 1 has not been heard of") for reason in found.values())
    ranks[0].stop()
    ranks[2].stop()


def test_end_of_the_store_is_noticed() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True)
    client = TCPStore("127.0.0.1", store.port, is_master=False)
    told = threading.Event()
    reasons = []

    def lost(reason: str) -> None:
        reasons.append(reason)
        told.set()

    Heartbeat(client, 0, 2, lambda _: None, **FAST)
    Heartbeat(client, 1, 2, lost, **FAST)
    assert not told.wait(1.5 * FAST["patience"])
    del store
    assert told.wait(20)
    assert reasons == ["rank 0, where the ranks met, has ended or cannot be reached"]

"""Replicas that die, restart or have no place: no request is lost beyond what is promised."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.ray_serve.cluster import OPTIONS, Endpoint, Outcome, processes, send_all


def bodies(model: str, count: int, tokens: int) -> list[dict[str, Any]]:
    """Every fourth request is streamed."""
    return [
        {
            "model": model,
            "prompt": [1000 + i, *range(500, 516)],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": i % 4 == 0,
        }
        for i in range(count)
    ]


def kill_a_replica() -> None:
    os.kill(processes("ray::ServeReplica:default:engine")[0], signal.SIGKILL)


def kill_an_engine() -> None:
    os.kill(processes("VLLM::EngineCore")[0], signal.SIGKILL)


def assert_none_lost(outcomes: list[Outcome], tokens: int, killed: bool) -> None:
    """What is not streamed is answered whole; a stream is whole or ends with an error event."""
    for outcome in outcomes:
        assert outcome.status == 200, outcome
        if outcome.streamed and outcome.error_event:
            assert killed
        else:
            assert outcome.tokens == tokens, outcome


@pytest.mark.slow
@pytest.mark.parametrize(("requests", "kill"), [(1000, kill_a_replica), (200, kill_an_engine)])
def test_many_requests_with_one_replica_killed_midway(
    endpoint: Endpoint, requests: int, kill: Callable[[], None]
) -> None:
    work = bodies(endpoint.model, requests, 4)
    outcomes = asyncio.run(send_all(endpoint, work, 32, {requests // 2: kill}))
    assert len(outcomes) == requests
    assert_none_lost(outcomes, 4, killed=True)
    broken = sum(outcome.error_event for outcome in outcomes)
    assert broken <= 32  # no more than were under way
    endpoint.wait_for_replicas(2)  # it comes back


@pytest.mark.slow
def test_stream_of_a_killed_replica_ends_with_an_error_event(endpoint: Endpoint) -> None:
    stream = {**bodies(endpoint.model, 1, 1500)[0], "stream": True}

    def kill_soon() -> None:
        while not sum(endpoint.metric("vllm:num_requests_running").values()):
            time.sleep(0.05)
        time.sleep(1)
        for pid in processes("ray::ServeReplica:default:engine"):
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_soon)
    killer.start()
    [outcome] = asyncio.run(send_all(endpoint, [stream], 1, {}))
    killer.join()
    assert outcome.status == 200
    assert outcome.error_event
    assert 0 < outcome.tokens < 1500
    endpoint.wait_for_replicas(2)


@pytest.mark.slow
def test_rolling_restart_loses_nothing(endpoint: Endpoint, deploy: Callable[..., Endpoint]) -> None:
    old = set(processes("ray::ServeReplica:default:engine"))
    stop = threading.Event()
    outcomes: list[Outcome] = []

    def keep_asking() -> None:
        while not stop.is_set():
            outcomes.extend(asyncio.run(send_all(endpoint, bodies(endpoint.model, 16, 8), 4, {})))

    asking = threading.Thread(target=keep_asking)
    asking.start()
    deploy(options=OPTIONS.replace("2048", "1024"))
    stop.set()
    asking.join()
    assert len(outcomes) >= 16
    assert_none_lost(outcomes, 8, killed=False)
    assert not old & set(processes("ray::ServeReplica:default:engine"))


@pytest.mark.slow
def test_full_application_answers_429_with_retry_after(deploy: Callable[..., Endpoint]) -> None:
    endpoint = deploy(max_ongoing=2, max_waiting=2)
    outcomes = asyncio.run(send_all(endpoint, bodies(endpoint.model, 40, 32), 40, {}))
    refused = [outcome for outcome in outcomes if outcome.status == 429]
    answered = [outcome for outcome in outcomes if outcome.status == 200]
    assert len(refused) + len(answered) == 40
    assert len(answered) >= 4
    assert refused
    assert all(1 <= int(outcome.retry_after) <= 60 for outcome in refused)
    assert_none_lost(answered, 32, killed=False)
    counted = endpoint.get("/metrics").text
    assert f'cpu_backend_gateway_refused_total{{status="429"}} {len(refused)}.0' in counted


@pytest.mark.slow
def test_nobody_there_is_503_in_time(deploy: Callable[..., Endpoint]) -> None:
    endpoint = deploy(waiting_seconds=3)
    start = time.monotonic()
    for pid in processes("ray::ServeReplica:default:engine"):
        os.kill(pid, signal.SIGKILL)
    [outcome] = asyncio.run(send_all(endpoint, bodies(endpoint.model, 2, 4)[1:], 1, {}))
    assert outcome.status == 503
    assert int(outcome.retry_after) >= 1
    assert time.monotonic() - start < 60

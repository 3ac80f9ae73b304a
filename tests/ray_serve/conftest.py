"""One Ray cluster and one application for all tests of this folder."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.server import free_port
from tests.ray_serve.cluster import MARK, OPTIONS, Endpoint


@pytest.fixture(scope="session")
def deploy(
    model_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Endpoint]]:
    """``deploy(**settings)``: starts the application, or replaces it by one with new settings."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    os.environ |= {
        MARK: uuid.uuid4().hex,
        "CPU_BACKEND_NUMA": f"{first}|{second}",
        "VLLM_CPU_KVCACHE_SPACE": "0.5",
        "HF_HUB_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # by default anything else on the machine comes first
    }
    import ray
    from ray import serve

    from cpu_backend.ray_serve import build

    # Ray puts the folder it is started in on its workers' path, and this one has no library in it.
    with contextlib.chdir(tmp_path_factory.mktemp("driver")):
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    def run(**settings: Any) -> Endpoint:
        fields = {"model": model_path, "options": OPTIONS, **settings}
        serve.run(build(fields), name="default", route_prefix="/")
        endpoint = Endpoint(f"http://127.0.0.1:{port}", model_path)
        endpoint.wait_for_replicas(2)
        return endpoint

    yield run
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def endpoint(deploy: Callable[..., Endpoint]) -> Endpoint:
    """The application with default settings."""
    return deploy()

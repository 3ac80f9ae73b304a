"""How many replicas a cluster takes, and the Serve application around them."""

from __future__ import annotations

from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cpu_backend.errors import ConfigError
from cpu_backend.ray_serve.gateway import Gateway, app
from cpu_backend.ray_serve.replica import Replica
from cpu_backend.ray_serve.router import PrefixRouter
from cpu_backend.ray_serve.settings import Settings

# `ray start --resources '{"numa_node": 4}'` says it by hand, for machines of different sizes.
RESOURCE = "numa_node"
STOP_SECONDS = 600.0  # in which a replica may finish what it has begun when it is replaced


def build_application(settings: Settings) -> serve.Application:
    """Gateway and replicas for the cluster that this process is connected to."""
    count, options = size_of_cluster()
    if settings.replicas != "auto":
        count = settings.replicas
    if count == 0:
        raise ConfigError(
            "No machine of the Ray cluster has CPUs for an engine: start one with "
            "`ray start --num-cpus N`, or give the number of replicas."
        )
    replicas = serve.deployment(
        Replica,
        name="engine",
        num_replicas=count,
        max_ongoing_requests=settings.max_ongoing,
        max_queued_requests=settings.max_waiting,
        ray_actor_options=options,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"busy_tokens": settings.busy_tokens},
        ),
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=STOP_SECONDS,
    ).bind(settings)
    gateway = serve.deployment(
        serve.ingress(app)(Gateway),
        name="gateway",
        num_replicas=settings.gateways,
        # The limits are the replicas'; the gateway itself only waits.
        max_ongoing_requests=100_000,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=STOP_SECONDS,
    )
    return gateway.bind(replicas, settings, count)


def size_of_cluster() -> tuple[int, dict[str, Any]]:
    """Replicas that fit, and what each asks Ray for.

    Where machines name their NUMA nodes as a resource, a replica takes one.  Elsewhere it takes as
    many CPUs as a node's share, the smallest of the cluster.
    """
    machines = [node for node in ray.nodes() if node["Alive"]]
    named = [int(node["Resources"].get(RESOURCE, 0)) for node in machines]
    if any(named):
        return sum(named), {"num_cpus": 0, "resources": {RESOURCE: 1}}
    with_cpus = [node for node in machines if node["Resources"].get("CPU", 0) >= 1]
    counts = ray.get([_count_nodes_of(node["NodeID"]) for node in with_cpus])
    shares = [
        max(1, int(node["Resources"]["CPU"]) // count)
        for node, count in zip(with_cpus, counts, strict=True)
    ]
    total = sum(
        min(count, int(node["Resources"]["CPU"]) // min(shares))
        for node, count in zip(with_cpus, counts, strict=True)
    )
    return total, {"num_cpus": min(shares, default=1)}


def _count_nodes_of(node_id: str) -> ray.ObjectRef[int]:
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return _count_nodes.options(scheduling_strategy=there, num_cpus=0).remote()


@ray.remote
def _count_nodes() -> int:
    from cpu_backend.ray_serve.places import usable_nodes
    from cpu_backend.runtime.plan import Machine

    return len(usable_nodes(Machine.read()))

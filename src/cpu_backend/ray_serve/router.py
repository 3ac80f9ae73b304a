"""Ray Serve's request router with :mod:`prefix` as its policy.

Runs in the gateway's process: every decision is a look into local tables, no call to another actor.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from cpu_backend.ray_serve.prefix import PrefixTable, preference


class PrefixRouter(RequestRouter):
    """The replica with the longest cached prefix, unless it is overloaded.

    The second argument of every request is its chain (:func:`prefix.chunks_of`), the third the
    number of the replica that it is meant for, or None for any.
    """

    def initialize_state(self, busy_tokens: int = 256) -> None:
        """Called by Serve with the ``request_router_kwargs`` of the deployment."""
        self._busy_tokens = busy_tokens
        self._table = PrefixTable()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """One list per rank of preference; Serve takes the first replica that has a place."""
        by_id = {replica.replica_id: replica for replica in candidate_replicas}
        chain: list[int] = []
        if pending_request is not None:
            # Serve would else ask again without a pause while all replicas are full.
            pending_request.routing_context.should_backoff = True
            _, chain, number = pending_request.args[:3]
            if number is not None and by_id:
                chosen = sorted(by_id, key=str)[number % len(by_id)]
                return [[by_id[chosen]]]
        loads = {rid: self.replica_queue_len_cache.get(rid) or 0 for rid in by_id}
        return [[by_id[rid]] for rid in preference(self._table, chain, loads, self._busy_tokens)]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """The prompt is in that replica's cache from now on."""
        if pending_request.args[2] is None:
            self._table.sent(replica_id, pending_request.args[1])

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Its cache died with it."""
        super().on_replica_actor_died(replica_id)
        self._table.forget(replica_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Serve's view of who is there has changed."""
        super().update_replicas(replicas)
        self._table.keep_only(replica.replica_id for replica in replicas)
        for replica in replicas:
            if tokens := replica.replica_metadata.get("cache_tokens"):
                self._table.set_capacity(replica.replica_id, tokens)

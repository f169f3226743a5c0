"""Ray's request router by the rule of `affinity`."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from foretoken.serve.replicas.affinity import Affinity
from foretoken.serve.replicas.asked import Asked


class PrefixRouter(RequestRouter):
    """Chooses the replica that has read most of a prompt. Ray asks it for each request, and again
    where a replica has died before it took one."""

    def initialize_state(self, imbalance: int) -> None:  # type: ignore[override, unused-ignore]
        """Called by Ray with the configuration's `request_router_kwargs`."""
        self._affinity: Affinity[ReplicaID] = Affinity(imbalance)
        self._taken: dict[str, ReplicaID] = {}  # a request's internal id -> who has it

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks, the best first; Ray takes the next one where a replica can't take more."""
        if not candidate_replicas:
            return []
        named = {replica.replica_id: replica for replica in candidate_replicas}
        order = self._affinity.order(list(named), _text(pending_request))
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        return [[named[name]] for name in order]

    def on_request_routed(
        self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any
    ) -> None:
        """A replica has taken a request."""
        self._taken[pending_request.metadata.internal_request_id] = replica_id
        self._affinity.begun(replica_id, _text(pending_request))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """It has ended, somehow; also called for one that was never taken."""
        if self._taken.pop(internal_request_id, None) is not None:
            self._affinity.ended(replica_id)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Before the list of replicas says so."""
        super().on_replica_actor_died(replica_id)
        self._affinity.keep(self.curr_replicas)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """There are more, or fewer."""
        super().update_replicas(replicas)
        self._affinity.keep(self.curr_replicas)


def _text(request: PendingRequest | None) -> str:
    given = request.args[0] if request is not None and request.args else None
    return given.text if isinstance(given, Asked) else ""

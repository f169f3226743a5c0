"""Ray's request router by the rule of `affinity`, among the replicas that answer.

A replica may hang without dying: its process is stopped, or its event loop is. It takes nothing any
more, and so seems to have least to do, until Ray's own checks have failed three times, up to two
minutes later. So the router asks all of them itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from foretoken.serve.replicas.affinity import Affinity
from foretoken.serve.replicas.asked import Asked

_PAUSE, _PATIENCE = 1.0, 2.0  # seconds between two rounds of questions, and for an answer


class PrefixRouter(RequestRouter):
    """Chooses the replica that has read most of a prompt. Ray asks it for each request, and again
    where a replica has died before it took one. One that doesn't answer is chosen only where none
    does."""

    def initialize_state(self, imbalance: int) -> None:  # type: ignore[override, unused-ignore]
        """Called by Ray with the configuration's `request_router_kwargs`."""
        self._affinity: Affinity[ReplicaID] = Affinity(imbalance)
        self._taken: dict[str, ReplicaID] = {}  # a request's internal id -> who has it
        self._silent: set[ReplicaID] = set()
        self._listening: asyncio.Task[None] | None = None

    @property
    def curr_replicas(self) -> dict[ReplicaID, RunningReplica]:
        """Those that answer; Ray reads it to reach all."""
        known: dict[ReplicaID, RunningReplica] = super().curr_replicas
        return {name: one for name, one in known.items() if name not in self._silent}

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Ranks, the best first; Ray takes the next one where a replica can't take more."""
        if not candidate_replicas:
            return []
        here = [one for one in candidate_replicas if one.replica_id not in self._silent]
        named = {replica.replica_id: replica for replica in here or candidate_replicas}
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
        self._affinity.keep(super().curr_replicas)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """There are more, or fewer. Called on Ray's event loop."""
        super().update_replicas(replicas)
        self._affinity.keep(super().curr_replicas)
        if self._listening is None:
            self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        """Ask all again and again whether they answer."""
        while True:
            everybody = list(super().curr_replicas.values())
            heard = await asyncio.gather(*map(_answers, everybody))
            pairs = zip(everybody, heard, strict=True)
            self._silent = {one.replica_id for one, answered in pairs if not answered}
            await asyncio.sleep(_PAUSE)


async def _answers(replica: RunningReplica) -> bool:
    try:
        await asyncio.wait_for(replica.get_queue_len(deadline_s=_PATIENCE), _PATIENCE)
    except Exception:  # it hangs, or has died, which Ray will say
        return False
    return True


def _text(request: PendingRequest | None) -> str:
    given = request.args[0] if request is not None and request.args else None
    return given.text if isinstance(given, Asked) else ""

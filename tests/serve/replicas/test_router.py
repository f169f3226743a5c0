"""Which replicas Ray's router offers, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

pytest.importorskip("ray.serve", exc_type=ImportError)

from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID

from foretoken.serve.replicas import router
from foretoken.serve.replicas.router import PrefixRouter

NAME = DeploymentID(name="replica", app_name="foretoken")


class Known:
    """A replica, as the router knows it: it answers at once, or never."""

    max_ongoing_requests = 10

    def __init__(self, name: str) -> None:
        self.replica_id, self.hangs = ReplicaID(name, NAME), False

    async def get_queue_len(self, *, deadline_s: float) -> int:
        if self.hangs:
            await asyncio.Future()
        return 0


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


def test_one_that_hangs_is_left_out_while_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "_PAUSE", 0.01, raising=False)
    monkeypatch.setattr(router, "_PATIENCE", 0.05, raising=False)

    async def offered() -> None:
        made = PrefixRouter(NAME, DeploymentHandleSource.REPLICA)
        made.initialize_state(imbalance=4)
        one, two = Known("one"), Known("two")
        made.update_replicas([one, two])

        async def chosen() -> set[ReplicaID]:
            ranks = await made.choose_replicas([one, two])
            return {replica.replica_id for rank in ranks for replica in rank}

        both = {one.replica_id, two.replica_id}
        assert await chosen() == both == made.curr_replicas.keys()
        one.hangs = True
        await _until(lambda: made.curr_replicas.keys() == {two.replica_id})
        assert await chosen() == {two.replica_id}
        two.hangs = True
        await _until(lambda: not made.curr_replicas)
        assert await chosen() == both  # somebody has to take it
        one.hangs = two.hangs = False
        await _until(lambda: made.curr_replicas.keys() == both)

    asyncio.run(offered())

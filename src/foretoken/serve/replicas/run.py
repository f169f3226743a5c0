"""Serves a model from several replicas until it is told to end."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING, Any

from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported
from foretoken.llm import LLM
from foretoken.ray_cluster import cluster
from foretoken.serve.settings import ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application

APP = "foretoken"
_PARTS = 10_000  # Ray counts in these
_ANY = 1_000_000  # replicas queue requests themselves, and refuse by their own limit


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How many replicas there are.

    Attributes:
        least: how many there always are.
        most: how many there may be; as many as `least` is a fixed number.
        target: requests on each, above which there are more and below which there are fewer.
        imbalance: requests by which replicas may differ while prompts go where they were read.
    """

    least: int
    most: int
    target: int
    imbalance: int


@dataclass(frozen=True)
class Share:
    """What one replica has of the cluster's processors."""

    cpus: float
    gpus: float

    @property
    def threads(self) -> int:
        """As many as it has processors, one at least."""
        return max(1, int(self.cpus))


@dataclass(frozen=True)
class InFolder:
    """Loads a model as if in this folder, where it is: Ray's processes run elsewhere."""

    folder: str
    load: Callable[[], LLM]

    def __call__(self) -> LLM:
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        return self.load()


@contextmanager
def joined(address: str | None, most: int) -> Iterator[Share]:
    """Connected to a cluster, or to one that is started here; the share of each of `most`
    replicas. Raises `ForetokenError` where Ray Serve isn't installed or no cluster is there."""
    serve = imported("ray.serve", "ray", "--replicas needs")
    with cluster(address):
        import ray

        try:
            yield equal_share([node["Resources"] for node in ray.nodes() if node["Alive"]], most)
        finally:
            serve.shutdown()


def equal_share(nodes: Seq[Mapping[str, float]], most: int) -> Share:
    """The most that each of `most` replicas can have of a cluster whose nodes have these resources:
    Ray takes a replica's processors from one node, and a part of a GPU from one GPU.

    Raises `ForetokenError` where they have no room.
    """
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    on_one = ceil(most / sum(gpus)) if any(gpus) else 0  # replicas on a GPU
    places = [count * on_one if on_one else most for count in gpus]
    cpus = [node.get("CPU", 0.0) for node in nodes]
    parts = {floor(_PARTS * count / many) for count in cpus for many in range(1, most + 1)}
    for part in sorted(parts - {0}, reverse=True):
        share = part / _PARTS
        room = (min(place, int(count / share)) for place, count in zip(places, cpus, strict=True))
        if sum(room) >= most:
            return Share(share, floor(_PARTS / on_one) / _PARTS if on_one else 0.0)
    raise ForetokenError(f"The cluster has no room for {most} replicas; start fewer.")


def start(
    make: Callable[[], LLM],
    settings: ServerSettings,
    scale: Scale,
    share: Share,
    http: dict[str, Any],
    patience: float,
) -> None:
    """Start the replicas and the front, and wait until all can serve.

    make: loads the model, in a replica's process; http: Ray's `HTTPOptions`; patience: seconds that
    running answers get at the end. Raises `ForetokenError` where the model can't be loaded or the
    address not be had.
    """
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # what matters is raised
    serve.start(http_options=http, proxy_location="HeadOnly", logging_config=_QUIET)
    try:
        serve.run(application(make, settings, scale, share, patience), name=APP)
    except RuntimeError as error:
        raise ForetokenError(_why(str(error))) from error


_QUIET = {"log_level": "WARNING", "enable_access_log": False}


def application(
    make: Callable[[], LLM],
    settings: ServerSettings,
    scale: Scale,
    share: Share,
    patience: float,
) -> Application:
    """The front and the replicas, as an application of Ray Serve."""
    from ray import serve

    from foretoken.serve.replicas.deployments import Front, Replica

    common: dict[str, Any] = {
        "max_ongoing_requests": _ANY,
        "graceful_shutdown_timeout_s": patience,
        "graceful_shutdown_wait_loop_s": 0.2,
        "logging_config": _QUIET,
        "max_constructor_retry_count": 1,
    }
    replicas = serve.deployment(
        Replica,
        name="replica",
        ray_actor_options={"num_cpus": share.cpus, "num_gpus": share.gpus},
        request_router_config={
            "request_router_class": "foretoken.serve.replicas.router.PrefixRouter",
            "request_router_kwargs": {"imbalance": scale.imbalance},
        },
        **_count(scale),
        **common,
    )
    front = serve.deployment(
        serve.ingress()(Front),
        name="front",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    return front.bind(replicas.bind(make, settings), settings)


def _count(scale: Scale) -> dict[str, Any]:
    if scale.most == scale.least:
        return {"num_replicas": scale.least}
    autoscaling = {
        "min_replicas": scale.least,
        "max_replicas": scale.most,
        "target_ongoing_requests": scale.target,
    }
    return {"autoscaling_config": autoscaling}


def _why(message: str) -> str:
    """The sentence of a `ForetokenError` that a replica raised, out of Ray's report."""
    named = [line for line in message.splitlines() if "ForetokenError: " in line]
    if named:
        return named[-1].partition("ForetokenError: ")[2]
    return f"The replicas didn't start: {message.strip().splitlines()[-1]}"


def until_told() -> None:
    """Wait for SIGINT or SIGTERM; from then on a second one is a `KeyboardInterrupt`."""
    told = threading.Event()

    def tell(*_: object) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)
    while not told.wait(1.0):  # signals are looked at between waits
        pass


def drain(patience: float) -> None:
    """Refuse new requests, and let those that run come to their end, for so many seconds."""
    from ray import serve

    serve.get_app_handle(APP).broadcast("drain", patience).results(return_exceptions=True)
    serve.delete(APP)

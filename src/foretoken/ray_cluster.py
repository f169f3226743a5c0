"""A Ray cluster: the one at an address, or one that is started on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported

_CONNECT = 5.0  # seconds until a cluster counts as out of reach


@contextmanager
def cluster(address: str | None = None) -> Iterator[None]:
    """Connected to the Ray cluster at `address` ("host:port"), or to one started on this machine.

    Raises `ForetokenError` where Ray is not installed or the cluster can't be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report that it is used
    os.environ.setdefault("RAY_worker_niceness", "0")  # it would run workers after all else
    ray = imported("ray", "ray", "A cluster needs")
    if address is not None:
        _check_reachable(address)
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **options)
    except Exception as error:  # Ray raises no class of its own where a node doesn't start in time
        raise ForetokenError(
            f"The Ray cluster {address or 'here'} didn't start: {error}"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Connect to the port first: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ForetokenError(f"The cluster's address is host:port of its head, not {address!r}.")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT).close()
    except OSError as error:
        raise ForetokenError(
            f"No Ray cluster answers at {address} ({error}); start one with: ray start --head."
        ) from error

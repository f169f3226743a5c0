"""Ray clusters that can't be had."""

from __future__ import annotations

import sys
import time

import pytest

from foretoken.errors import ForetokenError
from foretoken.ray_cluster import cluster


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ForetokenError, match=r"pip install 'foretoken\[ray\]'"), cluster():
        pass


@pytest.mark.parametrize("address", ["somewhere", "ray://127.0.0.1:10001", "127.0.0.1:port"])
def test_an_address_that_is_none(address: str) -> None:
    """One sentence, before Ray tries for minutes."""
    pytest.importorskip("ray")
    with pytest.raises(ForetokenError, match="host:port"), cluster(address):
        pass


def test_a_cluster_that_does_not_answer() -> None:
    """At once, not after Ray's minutes."""
    pytest.importorskip("ray")
    began = time.monotonic()
    with pytest.raises(ForetokenError, match=r"127\.0\.0\.1:1 "), cluster("127.0.0.1:1"):
        pass
    assert time.monotonic() - began < 20


def test_a_cluster_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is too busy Ray raises a bare exception."""
    ray = pytest.importorskip("ray")

    def late(*given: object, **options: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(ForetokenError, match="here didn't start: The current"), cluster():
        pass

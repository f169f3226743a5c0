"""Options of several replicas."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken.cli.replicas import ReplicaOptions
from foretoken.errors import ForetokenError
from foretoken.serve.replicas.run import (
    InFolder,
    Scale,
    Share,
    _why,
    equal_share,
    joined,
    until_told,
)


@pytest.mark.parametrize(
    ("options", "seed", "said"),
    [
        (ReplicaOptions(max_replicas=3), None, "--max-replicas does nothing alone"),
        (ReplicaOptions(ray_address="a:1"), None, "--ray-address does nothing alone"),
        (ReplicaOptions(replicas=2), 7, "--seed counts"),
        (ReplicaOptions(replicas=3, max_replicas=2), None, "give at least as many"),
        (ReplicaOptions(replicas=3, target_ongoing_requests=2), None, "without --max-replicas"),
    ],
)
def test_options_that_do_nothing_are_refused(
    options: ReplicaOptions, seed: int | None, said: str
) -> None:
    with pytest.raises(ForetokenError, match=said):
        options.check(seed)


def test_options_that_go_together() -> None:
    ReplicaOptions().check(7)
    ReplicaOptions(replicas=2, max_replicas=4, target_ongoing_requests=3).check(None)


def test_without_ray_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ForetokenError, match=r"pip install 'foretoken\[ray\]'"), joined(None, 2):
        pass


def test_shares() -> None:
    assert [Share(cpus, 0).threads for cpus in (0.5, 1.0, 3.5)] == [1, 1, 3]


@pytest.mark.parametrize(
    ("nodes", "most", "share"),
    [
        ([{"CPU": 2}], 4, Share(0.5, 0)),
        ([{"CPU": 8}], 3, Share(2.6666, 0)),
        ([{"CPU": 8, "GPU": 2}], 3, Share(2.6666, 0.5)),
        ([{"CPU": 8, "GPU": 2}], 2, Share(4, 1)),
        ([{"CPU": 8, "GPU": 4}], 2, Share(4, 1)),
        ([{"CPU": 8}, {"CPU": 32, "GPU": 4}], 4, Share(8, 1)),
        ([{"CPU": 8}, {"CPU": 32}], 4, Share(8, 0)),
        ([{"memory": 5.0}, {"CPU": 4}], 2, Share(2, 0)),
    ],
)
def test_equal_shares(nodes: list[dict[str, float]], most: int, share: Share) -> None:
    """The largest of which so many have room: those of one node, and parts of one GPU."""
    assert equal_share(nodes, most) == share


def test_no_room() -> None:
    """One sentence, where Ray would wait for another machine without an end."""
    with pytest.raises(ForetokenError, match="no room for 2 replicas"):
        equal_share([{"CPU": 8}, {"GPU": 1}], 2)


def test_a_second_signal_interrupts() -> None:
    """What the first one lets come to its end."""
    kept = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    try:
        until_told()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), kept, strict=True):
            signal.signal(number, handler)


def test_the_sentence_of_a_replica_that_did_not_start() -> None:
    told = "Deploying failed\n  File x\nforetoken.errors.ForetokenError: There is no model 'x'.\n"
    assert _why(told) == "There is no model 'x'."
    assert _why("All of it failed.") == "The replicas didn't start: All of it failed."


def test_a_model_is_loaded_in_its_folder(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("os.chdir", seen.append)
    InFolder(str(tmp_path), lambda: seen.append("loaded"))()  # type: ignore[arg-type, func-returns-value]
    assert seen == [str(tmp_path), "loaded"]


def test_lines_of_requests_are_one_servers() -> None:
    with pytest.raises(ForetokenError, match="--enable-log-requests is for one server"):
        ReplicaOptions(replicas=2).check(None, logs_requests=True)


@pytest.mark.parametrize(("slots", "imbalance"), [(1, 1), (9, 4)])
def test_the_scale_of_replicas(slots: int, imbalance: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default each takes as many requests as it has slots; and they may differ by half of that,
    by one at least."""
    started: list[object] = []
    place = "foretoken.serve.replicas.run."
    monkeypatch.setattr(f"{place}joined", lambda *given: nullcontext(Share(2, 0)))
    monkeypatch.setattr(f"{place}start", lambda *given: started.extend(given))
    for name in ("until_told", "drain"):
        monkeypatch.setattr(place + name, lambda *given: None)
    settings: Any = SimpleNamespace(names=("mini",))
    ReplicaOptions(replicas=2).serve(
        lambda threads: lambda: None,  # type: ignore[arg-type, return-value]
        settings,
        slots=slots,
        address={"host": "here", "port": 1},
        patience=3,
    )
    assert started[2] == Scale(least=2, most=2, target=slots, imbalance=imbalance)

"""The search for a layer set: it starts from every second layer and keeps the fastest."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from foretoken import ForetokenError
from foretoken.drafters.draft_verify import DraftVerify
from foretoken.drafters.nothing import Nothing
from foretoken.models import layer_set
from foretoken.models.hf.adapter import HFModel
from foretoken.protocols import Drafter
from foretoken.testing.checks import PROMPTS
from foretoken.testing.models import tiny_pair, tiny_transformers
from foretoken.tune import layers
from foretoken.tune.layers import Search


def test_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With times that follow from the set alone, the search finds the best one it tried."""
    pytest.importorskip("optuna")
    search, tried = Search(tiny_pair(layers=4).target, PROMPTS[:1], 4), []

    def time(drafter: Drafter) -> tuple[float, float]:
        if not isinstance(drafter, DraftVerify):
            return 9.0, 0.0
        tried.append(tuple(drafter.skip))  # type: ignore[arg-type]
        return abs(len(tried[-1]) - 5.0) + (0 in tried[-1]), 0.5

    monkeypatch.setattr(search, "time", time)
    ticks: list[None] = []
    found = search.run(30, advance=lambda: ticks.append(None))
    assert tried[0] == layer_set.every_second(4)
    del tried[len(ticks) :]
    assert len(tried) == len(ticks) == 30
    best = min(tried, key=lambda each: abs(len(each) - 5.0) + (0 in each))
    assert found.seconds == abs(len(best) - 5.0) + (0 in best)
    assert found.skipped in tried and (found.plain, found.rate) == (9.0, 0.5)


def test_an_interrupt_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were timed; with none there is nothing to keep."""
    pytest.importorskip("optuna")
    search, ending = Search(tiny_pair(layers=4).target, PROMPTS[:1], 4), KeyboardInterrupt()
    times: list[float | KeyboardInterrupt] = [3.0, 2.0, 4.0, ending]

    def time(drafter: Drafter) -> tuple[float, float]:
        if not isinstance(drafter, DraftVerify):
            return 9.0, 0.0
        found = times.pop(0) if times else 2.5
        if isinstance(found, KeyboardInterrupt):
            raise found
        return found, 0.5

    monkeypatch.setattr(search, "time", time)
    found = search.run(30)
    assert (found.seconds, found.trials) == (2.5, 3)
    times.append(ending)
    with pytest.raises(KeyboardInterrupt):
        search.run(30)


def test_what_is_told_is_timed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of many noisy times is too short: set and plain decoding are timed again in turn,
    and their medians are told."""
    pytest.importorskip("optuna")
    search, trials = Search(tiny_pair(layers=4).target, PROMPTS[:1], 4), 20
    noise, calls = random.Random(0), list[str]()

    def time(drafter: Drafter) -> tuple[float, float]:
        drafting = isinstance(drafter, DraftVerify)
        calls.append("set" if drafting else "plain")
        return (2.0 if drafting else 1.0) + noise.choice([-0.9, 0.0, 0.0, 0.0, 0.5]), 0.5

    monkeypatch.setattr(search, "time", time)
    found = search.run(trials)
    assert (found.seconds, found.plain) == (2.0, 1.0)
    last = calls[1 + trials :]
    assert len(last) >= 6 and last == ["set", "plain"] * (len(last) // 2)


def test_times_are_of_the_drafter() -> None:
    """All layers kept: every draft is accepted; none kept: none is; the prompt isn't counted."""
    search = Search(tiny_pair(layers=3).target, PROMPTS[:2], 12)
    seconds, rate = search.time(DraftVerify(()))
    assert seconds > 0 and rate == 1
    assert search.time(DraftVerify((0, 1, 2, 3, 4, 5)))[1] < 0.5


def test_what_cannot_be_searched() -> None:
    """A target without level e, and no prompts."""
    with pytest.raises(ForetokenError, match="native"):
        Search(HFModel(tiny_transformers()), PROMPTS)
    with pytest.raises(ForetokenError, match="no prompts"):
        Search(tiny_pair().target, [])


def test_times_are_those_of_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all prompts together, without the time that reading them took."""
    stats = SimpleNamespace(decode_time=6.0, tokens=12, draft_acceptance_rate=0.25)
    engine = SimpleNamespace(add=lambda *given: None, busy=False, stats=stats)
    monkeypatch.setattr(layers, "Engine", lambda *given: engine)
    assert Search(tiny_pair().target, PROMPTS[:2], 4).time(Nothing()) == (0.5, 0.25)

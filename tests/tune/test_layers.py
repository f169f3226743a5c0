"""The search for a layer set: it starts from every second layer and keeps the fastest."""

from __future__ import annotations

import pytest

from foretoken import ForetokenError
from foretoken.drafters.draft_verify import DraftVerify
from foretoken.models import layer_set
from foretoken.models.hf.adapter import HFModel
from foretoken.protocols import Drafter
from foretoken.testing.checks import PROMPTS
from foretoken.testing.models import tiny_pair, tiny_transformers
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
    assert len(tried) == len(ticks) == 30
    best = min(tried, key=lambda each: abs(len(each) - 5.0) + (0 in each))
    assert found.seconds == abs(len(best) - 5.0) + (0 in best)
    assert found.skipped in tried and (found.plain, found.rate) == (9.0, 0.5)


def test_an_interrupt_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were timed; with none there is nothing to keep."""
    pytest.importorskip("optuna")
    search, times = Search(tiny_pair(layers=4).target, PROMPTS[:1], 4), [3.0, 2.0, 4.0]

    def time(drafter: Drafter) -> tuple[float, float]:
        if not isinstance(drafter, DraftVerify):
            return 9.0, 0.0
        if not times:
            raise KeyboardInterrupt
        return times.pop(0), 0.5

    monkeypatch.setattr(search, "time", time)
    found = search.run(30)
    assert (found.seconds, found.trials) == (2.0, 3)
    with pytest.raises(KeyboardInterrupt):
        search.run(30)


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

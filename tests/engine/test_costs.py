"""Costs that are measured when an engine is made, and kept for the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM
from foretoken.engine import costs
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair

pytestmark = pytest.mark.usefixtures("cache")


class Counted(ModelTarget):
    """Counts the passes that score."""

    passes = 0

    def score(self, *arguments: Any) -> Any:
        Counted.passes += 1
        return super().score(*arguments)


def test_costs_are_measured_once(pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 12 passes, of a fast model more in no time; then a second one tells whether it holds."""
    monkeypatch.setattr(costs, "ModelTarget", Counted)
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)  # as if each pass took long
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    config = {"method": "auto", "model": pair.draft}

    def passes() -> int:
        Counted.passes = 0
        LLM(pair.target, speculative_config=config)
        return Counted.passes

    first = passes()
    kept = {path: path.read_text("utf-8") for path in cache.rglob("*.json")}
    assert 2 < first <= 12
    assert passes() == 2
    assert {path: path.read_text("utf-8") for path in cache.rglob("*.json")} == kept
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: False)
    assert passes() == 2 + first
    now = {path: path.read_text("utf-8") for path in cache.rglob("*.json")}
    assert now.keys() == kept.keys() and all(now[path] != kept[path] for path in kept)


def test_what_is_kept_must_agree() -> None:
    """A machine that was busy, or is now, shows it by half as much again."""
    assert costs._agree(10.0, 14.0) and costs._agree(14.0, 10.0)
    assert not costs._agree(10.0, 16.0) and not costs._agree(16.0, 10.0)

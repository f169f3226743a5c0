"""Costs that are measured when an engine is made, and kept for the next one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
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


DAMAGED = [b"", b"{", b"\xff", b"[]", b"{}", b'{"ms": 3}', b'{"ms": {}}', b'{"ms": {"1": 1.0}}']
DAMAGED += [b'{"ms": {"call": "x"}}', b'{"ms": {"call": NaN, "level": -1}}', None]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_files_are_made_again(
    content: bytes | None, pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What isn't a measurement counts for nothing, whatever stands there; None: a folder."""
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    config = {"method": "auto:pld,sps", "model": pair.draft}
    LLM(pair.target, speculative_config=config)
    files = list(cache.rglob("*.json"))
    assert len(files) == 3  # the passes and two drafts
    for file in files:
        file.unlink()
        file.mkdir() if content is None else file.write_bytes(content)
    LLM(pair.target, speculative_config=config)
    assert content is None or all(json.loads(file.read_text())["ms"] for file in files)


def test_costs_that_cant_be_kept(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured all the same, and the sentence names the file."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "file"))
    LLM(pair.target, speculative_config={"method": "auto:pld"})
    assert str(tmp_path / "file") in caplog.text and "measured at every start" in caplog.text


def test_what_is_kept_must_agree() -> None:
    """A machine that was busy, or is now, shows it by half as much again."""
    assert costs._agree(10.0, 14.0) and costs._agree(14.0, 10.0)
    assert not costs._agree(10.0, 16.0) and not costs._agree(16.0, 10.0)


def test_the_key_of_a_cached_table(pair: Pair) -> None:
    """A drafter's class, its plain options by name and the shapes of its models: a table is used
    again for the same ones only."""
    drafter = SmallLM(pair.draft, 3)
    drafter.bind(ModelTarget(pair.target, 1, 32))
    name, *rest = costs._identity(drafter)
    shape = costs.shape_of(pair.draft)
    assert name == "SmallLM" and "num_speculative_tokens=3" in rest
    assert rest[-2 * len(shape) :] == shape * 2
    assert costs._identity(PromptLookup(5)) != costs._identity(PromptLookup(6))


def test_levels_count_where_depth_costs() -> None:
    """Of two timed drafts: a call alone where the deeper one is hardly slower, else a price a
    level."""
    assert costs._line(1, 2.0, 4, 2.5) == {"call": 2.5}
    assert costs._line(1, 2.0, 4, 8.0) == {"call": 0.0, "level": 2.0}
    assert costs._line(2, 3.0, 2, 9.0) == {"call": 9.0}


def test_only_the_later_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are slow: of five the last three are kept, of two the second."""
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)
    for least, kept in ((5, [[3.0], [4.0], [5.0]]), (2, [[2.0]]), (1, [[1.0]])):
        rounds = iter([[1.0], [2.0], [3.0], [4.0], [5.0]])
        assert costs._rounds(lambda rounds=rounds: next(rounds), least) == kept  # type: ignore[misc]

"""Methods on one target, loaded once."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarked import Pair, plan
from foretoken import ForetokenError
from foretoken.bench.measure.costs import draft_model
from foretoken.bench.record import BASELINE
from foretoken.bench.run.runner import Runner
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.lineup import Lineup
from foretoken.recommender.prediction import Prediction
from foretoken.recommender.race import Allowance
from foretoken.recommender.served import Cell


def nothing() -> None:
    return


@pytest.fixture
def lineup(checkpoints: Pair) -> Lineup:
    return Lineup(Runner(plan(checkpoints, methods={}, lenient=True)))


def small(checkpoints: Pair, **more: Any) -> Candidate:
    config = {"method": "sps", "model": str(checkpoints[1]), "num_speculative_tokens": 8}
    return Candidate("sps draft", config, any_length=True, **more)


def test_a_draft_model_is_loaded_once(lineup: Lineup, checkpoints: Pair) -> None:
    """The finalist with another length, and auto, draft with the model that was screened; what is
    no finalist is gone."""
    some = [small(checkpoints), Candidate("pld", {"method": "pld"})]
    loaded = lineup.load(some, Allowance.starting(99), nothing)
    assert loaded == some
    first = draft_model(lineup.runner.llms["sps draft"].engine.drafter)
    best = [Prediction("sps draft", some[0].of_length(3), {Cell(1, 0.0): 1.5})]
    own = Candidate("yours", {"method": "suffix"}, given=True)
    found = [one.label for one in lineup.finalists(best, 2, [own])]
    assert found == ["sps draft, 3 tokens", "auto draft", "yours"]
    assert lineup.runner.labels == [BASELINE, *found]
    chain = lineup.runner.llms["sps draft, 3 tokens"].engine.drafter
    assert chain.nodes == 3 and draft_model(chain) is first
    parts = lineup.runner.llms["auto draft"].engine.drafter.parts
    assert [part.small_models for part in parts if part.small_models] == [(first,)]


def test_one_that_is_loaded_otherwise_is_another(lineup: Lineup, checkpoints: Pair) -> None:
    """In 4 bits it is a model of its own, which auto drafts with where it was the best."""
    whole = small(checkpoints)
    narrow = Candidate("sps draft in q4", {**whole.config, "draft_backend": "q4"}, any_length=True)
    lineup.load([whole, narrow], Allowance.starting(99), nothing)
    drafters = [lineup.runner.llms[one.label].engine.drafter for one in (whole, narrow)]
    one, other = map(draft_model, drafters)
    assert one is not None and other is not None and other is not one
    assert other.backend == "q4" != one.backend
    best = [Prediction(narrow.label, narrow.of_length(3), {Cell(1, 0.0): 1.5})]
    found = [candidate.label for candidate in lineup.finalists(best, 2, [])]
    assert found == ["sps draft in q4, 3 tokens", "auto draft in q4"]
    parts = lineup.runner.llms[found[1]].engine.drafter.parts
    assert [part.small_models for part in parts if part.small_models] == [(other,)]


def test_what_cannot_be_served(lineup: Lineup, checkpoints: Pair) -> None:
    """Is noted, or refused where it was asked for; so is what there is no time for."""
    bad = Candidate("eagle", {"method": "eagle", "model": str(checkpoints[1])})
    assert lineup.load([bad], Allowance.starting(99), nothing) == []
    assert "no checkpoint" in lineup.runner.not_run["eagle"]
    asked = Candidate("mine", bad.config, given=True)
    with pytest.raises(ForetokenError, match="no checkpoint"):
        lineup.load([asked], Allowance.starting(99), nothing)
    times = iter([0.0, 50.0])
    late = Allowance.starting(99.0, lambda: next(times))
    assert lineup.load([small(checkpoints)], late, nothing) == []
    assert "give more seconds" in lineup.left_out["sps draft"]


def test_auto_drafts_with_no_model_that_is_hopeless(lineup: Lineup, checkpoints: Pair) -> None:
    """It then chooses between copies alone."""
    slow = Prediction("sps draft", small(checkpoints).of_length(3), {Cell(1, 0.0): 0.5})
    found = [one.label for one in lineup.finalists([slow], 2, [])]
    assert found == ["sps draft, 3 tokens", "auto"]


def test_a_checked_one_is_freed(lineup: Lineup, checkpoints: Pair) -> None:
    """Until it is its turn; nothing of it is in what is served meanwhile."""
    lineup.check(Candidate("yours", {"method": "suffix"}, given=True))
    assert lineup.runner.labels == [BASELINE]

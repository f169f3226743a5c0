"""Every method survives a fault at every call of its steps; and the harness finds what doesn't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from foretoken import METHODS
from foretoken.config import BuiltMethod, build
from foretoken.control.cost_model import CostModel, DraftCost
from foretoken.drafters.either import Either
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.shared.wrapper import Wrapper
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.engine import Engine
from foretoken.engine.stats import EngineStats
from foretoken.step import step
from foretoken.testing import Pair, check_faults
from test_conformance import NEEDS, class_of, given, models, settings, untrained

Make = Callable[[Pair], dict[str, Any]]

COSTS = CostModel(
    {1: 1.0, 64: 1.5},
    {"pld": DraftCost(call=0.01), "sps": DraftCost(level=0.1), "suffix": DraftCost(call=0.01)},
    fixed=True,
)


def trained(name: str, pair: Pair) -> Any:
    """Random weights for a drafter."""
    return untrained(class_of(name).module, pair, name)


def auto(pair: Pair) -> dict[str, Any]:
    """Two parts that copy, with costs that needn't be measured."""
    return {name: NEEDS[f"auto.{name}"](pair) for name in ("drafters", "names", "costs")}


COMBINED: dict[str, Make] = {
    "auto": auto,
    "online": lambda pair: {"model": NEEDS["online.drafters"](pair)[0].model},
    "pld+sps": lambda pair: {"model": pair.draft, "num_speculative_tokens": 2},
    "suffix+medusa": lambda pair: {"medusa": {"model": trained("medusa", pair)}},
    "sps+eagle3": lambda pair: {
        "sps": {"model": pair.draft},
        "eagle3": {"model": trained("eagle3", pair), "depth": 2, "top_k": 2},
    },
    "pld|sps": lambda pair: {"model": pair.draft, "num_speculative_tokens": 2},
    "suffix|mcsd": lambda pair: {"model": pair.draft, "widths": (2, 1)},
    "auto:pld,sps": lambda pair: {"model": pair.draft, "costs": COSTS},
    "auto:suffix,pld": lambda pair: {"costs": COSTS},
    "online:medusa": lambda pair: {"model": trained("medusa", pair)},
}
"""Methods that are made of others, with the options that they need."""


def build_small(name: str, pair: Pair) -> BuiltMethod:
    """A method that drafts little, with what it needs: a fault at the first node of a draft is as
    good as one at the tenth."""
    row = METHODS.get(name)
    if name in COMBINED:
        return build({"method": name, **COMBINED[name](pair)})
    if row is None or row.target:
        return build({"method": name})
    few = settings(row.drafter, "distribution")
    if "acceptance" in row.options:  # which plans the tree, instead of widths
        few = {option: value for option, value in few.items() if option != "widths"}
        few |= {"tree_nodes": 3}
    return build({"method": name, **given(row.drafter, pair), **few})


FURTHER = {"sps+eagle3", "suffix+medusa", "suffix|mcsd", "auto:suffix,pld"}
"""Methods that are joined as others of `COMBINED` are."""


def by_drafter() -> Iterator[Any]:
    """Every method; of those with the same drafter, or joined alike, all but one are slow."""
    seen = set(FURTHER)
    for name in [*METHODS, *(name for name in COMBINED if name not in METHODS)]:
        drafter = METHODS[name].drafter if name in METHODS else name
        yield pytest.param(name, marks=[pytest.mark.slow] if drafter in seen else [])
        seen.add(drafter)


@pytest.mark.parametrize("name", by_drafter())
def test_every_call_of_every_method(name: str) -> None:
    """Whatever raises, nothing is lost and nobody else's text changes."""
    pair = models("native")
    assert check_faults(build_small(name, pair), pair) > 80


class Leaks(SmallLM):
    """Keeps the slot of a sequence whose beginning stopped half-way."""

    def begin(self, sequence: Any) -> None:
        super().begin(sequence)
        sequence.state[self] = True

    def end(self, sequences: Any) -> None:
        super().end([sequence for sequence in sequences if sequence.state.pop(self, False)])


class Remembers(PromptLookup):
    """Takes what a step that failed left behind for its own."""

    _step: Any = None

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
        self._step = list(sequences)
        return super().draft(sequences, budgets, draws)

    def observe(self, sequences: Any, steps: Any) -> None:
        super().observe(sequences, steps)
        for drafted, sequence in zip(self._step or sequences, sequences, strict=True):
            assert drafted is sequence
        self._step = None


class Hoards(PromptLookup):
    """Keeps every sequence."""

    def begin(self, sequence: Any) -> None:
        self._all = [*getattr(self, "_all", []), sequence]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda pair: Leaks(pair.draft, 2), "slots lost in the caches"),
        (lambda pair: Remembers(2), "failed: "),
        (lambda pair: Hoards(2), "still reachable: Sequence"),
    ],
)
def test_finds_drafters_that_do_not_clean_up(make: Any, found: str) -> None:
    """What they leave is named, with the call that failed, if any did."""
    pair = models("native")
    with pytest.raises(AssertionError, match=found):
        check_faults(build({"method": make(pair)}), pair)


def commits_before_an_error(self: Engine, samples: Any) -> Any:
    """An engine that keeps the tokens of a step that failed."""
    budgets = [min(sample.left - 1, self.target.nodes) for sample in samples]
    return step(*self._timed, self.verifier, [s.sequence for s in samples], budgets)


def fails_all(self: Engine, samples: Any, error: Exception, again: Any) -> Any:
    """An engine that takes an error in a pass for everybody's."""
    for sample in samples:
        self._fail(sample.request, "A pass", error)
    return iter(())


def ends_once(end: Any, sequence: Any) -> None:
    """An engine that takes no notice of an end that raised."""
    with suppress(Exception):
        end()


def ends_in_turn(self: Wrapper, sequences: Any) -> None:
    """A wrapper whose later parts aren't ended where an earlier one raises."""
    for part in self.drafters:
        part.end(sequences)


@pytest.mark.parametrize(
    ("where", "broken", "found"),
    [
        ((Engine, "_advance"), commits_before_an_error, "wrote "),
        ((Engine, "_one_by_one"), fails_all, "failed: "),
        (("foretoken.engine.engine.insist",), ends_once, "slots lost in the caches"),
        ((EngineStats, "remove"), lambda self, other: None, "other totals"),
        ((Wrapper, "end"), ends_in_turn, "slots lost in the caches"),
    ],
)
def test_finds_engines_that_lose_something(
    where: Any, broken: Any, found: str, monkeypatch: Any
) -> None:
    """Each of these once was the engine's way, or nearly."""
    pair = models("native")
    monkeypatch.setattr(*where, broken)
    parts = [SmallLM(pair.draft, 1), SmallLM(pair.draft, 2)]
    with pytest.raises(AssertionError, match=found):
        check_faults(build({"method": Either(parts)}), pair)


@pytest.mark.parametrize(
    ("frees", "found"),
    [(True, "the states of 4 sequences are left"), (False, "bytes of the caches are still reserv")],
)
def test_what_is_left_of_a_sequence(frees: bool, found: str, monkeypatch: Any) -> None:
    """After its end: nothing of its drafter's, and nothing that it reserved."""

    def release(self: Engine, sample: Any) -> None:
        if frees:
            self.target.budget.free(sample.sequence.id)
        self.drafter.end([sample.sequence])
        self.target.end(sample.sequence)
        place, last = self._running.index(sample), self._running.pop()
        if last is not sample:
            self._running[place] = last

    monkeypatch.setattr(Engine, "_release", release)
    with pytest.raises(AssertionError, match=found):
        check_faults(build({"method": PromptLookup(2)}), models("native"))


def test_classes_are_as_before() -> None:
    """What was watched is itself again, also after a failed check."""
    pair = models("native")
    before = type(pair.target), type(pair.draft)
    with pytest.raises(AssertionError):
        check_faults(build({"method": Leaks(pair.draft, 2)}), pair)
    assert (type(pair.target), type(pair.draft)) == before

"""Masks are filled while the target's pass runs, and nothing else changes."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.grammar.constraint import CompiledGrammar
from foretoken.models.target import ModelTarget
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.step import step
from foretoken.testing import Scripted, automaton, table_pair
from foretoken.testing.grammars import Automaton
from foretoken.verify.target_only import TargetOnly

MOVES = {0: {0: 1, 2: 2}, 1: {2: 0, 0: 2}, 2: {0: 0}}
WAIT = 5.0


class Watched(Automaton):
    """Tells which threads filled its masks, and that one did."""

    threads: ClassVar[set[threading.Thread]] = set()
    filled = threading.Event()

    def fill(self, words: Any) -> None:
        super().fill(words)
        Watched.threads.add(threading.current_thread())
        Watched.filled.set()
        time.sleep(0.02)


class Counted(Automaton):
    """Counts its masks."""

    masks: ClassVar[int] = 0

    def fill(self, words: Any) -> None:
        super().fill(words)
        Counted.masks += 1


class Broken(Automaton):
    def fill(self, words: Any) -> None:
        raise RuntimeError("too complex")


class Waiting(ModelTarget):
    """A pass that goes on once a mask has been filled, or fails."""

    failing = False

    def score(self, sequences: Any, trees: Any) -> Any:
        assert Watched.filled.wait(WAIT), "No mask was filled during the pass."
        Watched.filled.clear()
        if self.failing:
            raise RuntimeError("the pass failed")
        return super().score(sequences, trees)


def grammar(kind: type[Automaton]) -> CompiledGrammar:
    return CompiledGrammar("a toy", 3, lambda: kind(MOVES, {0}))


def begun(target: ModelTarget, *grammars: CompiledGrammar | None) -> list[Sequence]:
    sequences = [
        Sequence.start([0], SamplingParams(temperature=0, structured_outputs=g)) for g in grammars
    ]
    for sequence in sequences:
        target.begin(sequence)
    return sequences


def undrafted(target: ModelTarget, sequences: list[Sequence]) -> list[Step]:
    drafter = Nothing()
    drafter.bind(target)
    return step(target, drafter, TargetOnly(), sequences, [0] * len(sequences))


def written(target: ModelTarget, *grammars: CompiledGrammar | None, draft: bool) -> list[list[int]]:
    sequences = begun(target, *grammars)
    drafter = Scripted(lambda s, n: [[2, 0, 1], [0, 2]]) if draft else Nothing()
    drafter.bind(target)
    for _ in range(6):
        step(target, drafter, TargetOnly(), sequences, [4] * len(sequences))
    return [s.output[:6] for s in sequences]


@pytest.mark.parametrize("draft", [False, True])
def test_masks_are_filled_during_the_pass(draft: bool) -> None:
    """A pass that waits for a mask goes on, no mask is filled by the thread of the loop, and the
    texts are those of plain decoding with another matcher."""
    model = table_pair(3).target
    toy = automaton(3, MOVES, {0})
    plain = written(ModelTarget(model, 2, 64), toy, None, draft=False)
    Watched.threads.clear()
    got = written(Waiting(model, 2, 64), grammar(Watched), None, draft=draft)
    assert got == plain
    assert Watched.threads and threading.current_thread() not in Watched.threads


def test_padding_has_no_masks() -> None:
    """Beside a longer draft: a place that nobody drafted for is no place."""
    target = ModelTarget(table_pair(3).target, 2, 64)
    sequences = begun(target, grammar(Counted), None)
    drafter = Scripted(lambda s, n: [[0, 1, 2]] if s is sequences[1] else [])
    drafter.bind(target)
    step(target, drafter, TargetOnly(), sequences, [4, 4])
    assert Counted.masks == 1


def test_padding_has_no_processors() -> None:
    """Nor is a processor called for it, with a grammar beside or without."""
    for form in (None, grammar(Automaton)):
        seen: list[list[int]] = []

        def spy(ids: Any, scores: Any, seen: list[list[int]] = seen) -> Any:
            seen.append(ids[0].tolist())
            return scores

        target = ModelTarget(table_pair(3).target, 2, 64)
        sequences = begun(target, None, form)
        sequences[0].params = replace(sequences[0].params, logits_processors=[spy])
        drafter = Scripted(lambda s, n, last=sequences[1]: [[0, 1, 2]] if s is last else [])
        drafter.bind(target)
        step(target, drafter, TargetOnly(), sequences, [4, 4])
        assert seen == [[0]]


def test_what_goes_wrong_on_the_thread_is_its_own_requests() -> None:
    target = ModelTarget(table_pair(3).target, 2, 64)
    wrong, right = begun(target, grammar(Broken), automaton(3, MOVES, {0}))
    steps = undrafted(target, [wrong, right])
    assert "too complex" in str(steps[0].error) and steps[1].error is None


def test_a_pass_that_fails_leaves_no_thread() -> None:
    target = Waiting(table_pair(3).target, 1, 64)
    target.failing = True
    sequences = begun(target, grammar(Watched))
    with pytest.raises(RuntimeError, match="the pass failed"):
        undrafted(target, sequences)
    assert not any(thread.name == "foretoken-masks" for thread in threading.enumerate())


def test_without_a_grammar_there_is_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is the text copied at each step: its numbers lie all over memory."""
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread"))
    monkeypatch.setattr(Sequence, "output", property(lambda self: pytest.fail("a copy")))
    target = ModelTarget(table_pair(3).target, 1, 64)
    sequences = begun(target, None)
    sequences[0].params = replace(sequences[0].params, min_tokens=2)
    assert undrafted(target, sequences)[0].tokens

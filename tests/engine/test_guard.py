"""Drafters that raise, give names that nobody asked for, or change what isn't theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.protocols import BaseDrafter
from foretoken.testing import Pair
from foretoken.tree import empty
from foretoken.verify.target_only import TargetOnly

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
MARK, BAD, GOOD = 7, [7, 9, 2, 5], [5, 9, 2, 5]


class Bad(BaseDrafter):
    """Drafts nothing; does its worst in one call, where the marked prompt takes part."""

    def __init__(self, at: str, worst: Callable[[Any], Any]) -> None:
        self.at, self.worst = at, worst

    def _maybe(self, call: str, sequences: Any) -> None:
        if call == self.at and any(s.prompt_length == 4 and MARK in s.tokens for s in sequences):
            self.worst(sequences)

    def bind(self, access: Any) -> None:
        if self.at == "bind":
            self.worst([])

    def begin(self, sequence: Any) -> None:
        self._maybe("begin", [sequence])

    def fork(self, sequence: Any, copy: Any) -> None:
        self._maybe("fork", [sequence])

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
        self._maybe("draft", sequences)
        return empty(len(sequences), torch.device("cpu"))

    def observe(self, sequences: Any, steps: Any) -> None:
        self._maybe("read" if steps[0].read else "observe", sequences)

    def end(self, sequences: Any) -> None:
        self._maybe("end", sequences)


def fails(_: Any) -> None:
    raise KeyError("x")


def leaves(_: Any) -> None:
    raise SystemExit(2)


def empties(sequences: Any) -> None:
    for sequence in sequences:
        sequence.tokens.clear()


def swaps(sequences: Any) -> None:
    for sequence in sequences:
        sequence.tokens[-1] = 1


CASES = [
    *((call, fails) for call in ("begin", "fork", "read", "draft", "observe")),
    *((call, leaves) for call in ("begin", "fork", "read", "draft", "observe")),
    *((call, does) for call in ("read", "draft", "observe") for does in (empties, swaps)),
]


@pytest.mark.parametrize(
    ("call", "worst"), CASES, ids=[f"{call}-{does.__name__}" for call, does in CASES]
)
def test_what_a_drafter_does_is_its_own(pair: Pair, call: str, worst: Any) -> None:
    """The error names it, the neighbours write what they would have written, no slot is lost."""
    [expected] = LLM(pair.target).generate([GOOD], GREEDY)
    with LLM(pair.target, speculative_config={"method": Bad(call, worst)}, max_num_seqs=4) as llm:
        twice = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, n=2)
        first, bad, last = llm.generate([GOOD, BAD, GOOD], [GREEDY, twice, GREEDY])
        assert "The drafter Bad" in str(bad.error)
        assert first.token_ids == last.token_ids == expected.token_ids
        assert llm.engine.target.free == 4 and not llm.engine.busy


def test_an_end_that_leaves(pair: Pair) -> None:
    """It is told in the log, and the slot comes back."""
    with LLM(pair.target, speculative_config={"method": Bad("end", leaves)}) as llm:
        [output] = llm.generate([BAD], GREEDY)
        assert len(output.token_ids) == 8 and llm.engine.target.free == 8


def test_a_drafter_that_cant_be_bound(pair: Pair) -> None:
    """Its error names it, before anything is served."""
    with pytest.raises(ForetokenError, match=r"^The drafter Bad raised KeyError: 'x'$"):
        LLM(pair.target, speculative_config={"method": Bad("bind", fails)})


def test_what_says_nothing_of_its_needs(pair: Pair) -> None:
    """`wants` isn't of our kind."""
    drafter = Bad("never", fails)
    drafter.wants = 5  # type: ignore[assignment]
    with pytest.raises(ForetokenError, match=r"^The drafter Bad raised AttributeError"):
        LLM(pair.target, speculative_config={"method": drafter})


class Chooses(Bad):
    """Says who drafted, for one sequence only, or by what is no name."""

    chose: Any = ("a",)

    def __init__(self) -> None:
        super().__init__("never", fails)


def test_too_few_names_of_who_drafted(pair: Pair) -> None:
    """Each request fails only where the drafter can't say who drafted for it."""
    llm = LLM(pair.target, speculative_config={"method": Chooses()}, max_num_seqs=4)
    outputs = llm.generate([GOOD, GOOD], GREEDY)
    assert [output.error for output in outputs] == [None, None]  # alone, each has its name
    assert llm.stats.chosen["a"] == 16
    Chooses.chose = ("a", "b")
    [output] = llm.generate([GOOD], GREEDY)
    assert "2 names in `chose` after a step of 1 sequences" in str(output.error)
    Chooses.chose = ([1],)
    [output] = llm.generate([GOOD], GREEDY)
    assert output.error is None and llm.stats.chosen["[1]"] == 8


class Rule(TargetOnly):
    """Makes another verdict of a good one, once."""

    def __init__(self, does: Callable[[Any], Any]) -> None:
        self.does: Any = does

    def __call__(self, trees: Any, scores: Any, draws: Any) -> Any:
        does, self.does = self.does, lambda verdict: verdict
        return does(super().__call__(trees, scores, draws))


def path_of(verdict: Any, slot: int) -> Any:
    """With one accepted node."""
    return verdict._replace(path=torch.tensor([[slot]]), lengths=torch.tensor([1]))


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda v: None, "returned None"),
        (lambda v: tuple(v), "returned a value of type tuple"),
        (lambda v: v._replace(token=v.token + 97), "wrote ids outside the vocabulary of 97"),
        (lambda v: v._replace(token=v.token - 97), "wrote ids outside the vocabulary of 97"),
        (lambda v: v._replace(token=v.token + 0.5), "returned numbers that are no ids"),
        (lambda v: v._replace(token=v.token.to("meta")), "returned numbers that are no ids, or on"),
        (lambda v: v._replace(token=v.token[:0]), "returned 0 tokens for 1 sequences"),
        (lambda v: v._replace(lengths=v.lengths + 99), "accepted nodes that the tree of"),
        (lambda v: v._replace(lengths=v.lengths - 99), "accepted nodes that the tree of"),
        (lambda v: v._replace(path=v.path[0]), "returned 1 tokens for 1 sequences"),
        (lambda v: path_of(v, 0), "accepted nodes that the tree of"),
        (lambda v: path_of(v, 99), "accepted nodes that the tree of"),
    ],
    ids=range(12),
)
def test_verdicts_that_are_none(pair: Pair, does: Any, said: str) -> None:
    """The error names the rule, no slot is lost, and the next request is served."""
    config = {"method": "pld", "verifier": Rule(does)}
    with LLM(pair.target, speculative_config=config) as llm:
        [bad], [good] = llm.generate([GOOD], GREEDY), llm.generate([GOOD], GREEDY)
        assert str(bad.error).startswith(f"The verifier Rule {said}")
        assert good.token_ids == LLM(pair.target).generate([GOOD], GREEDY)[0].token_ids
        assert llm.engine.target.free == 8 and not llm.engine.busy

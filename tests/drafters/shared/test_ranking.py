"""Views that rank tokens: all but what cuts them off is the sequence's own."""

from __future__ import annotations

from dataclasses import replace

from foretoken import SamplingParams
from foretoken.drafters.shared.ranking import ranking
from foretoken.sampling.sequence import Sequence
from foretoken.testing import automaton

CUT = SamplingParams(temperature=0, top_k=1, top_p=0.5, min_p=0.9, repetition_penalty=1.3)


def test_nothing_is_cut_off() -> None:
    """At temperature 1; edits stay, and the text and what is kept of it are shared."""
    one = Sequence.start([1, 2, 3], CUT)
    view = ranking(one)
    assert view.params == SamplingParams(temperature=1.0, repetition_penalty=1.3)
    assert one.params is CUT and view.id == one.id
    assert view.tokens is one.tokens and view.state is one.state and view.penalty is one.penalty


def test_parameters_are_made_once() -> None:
    """Unless the sequence has got others."""
    one = Sequence.start([1, 2, 3], CUT)
    first = ranking(one).params
    assert ranking(one).params is first
    one.params = replace(CUT, repetition_penalty=1.5)
    assert ranking(one).params.repetition_penalty == 1.5


def test_a_grammar_is_the_sequences() -> None:
    """So that its matcher, and what it has found, serve both."""
    grammar = automaton(3, {0: {0: 0}}, {0})
    one = Sequence.start([0], replace(CUT, structured_outputs=grammar))
    assert ranking(one).constraint is one.constraint is not None

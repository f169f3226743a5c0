"""Watched calls are counted, and the one that is meant raises."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from foretoken import SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.testing.calls import Call, Calls, Fault, For, Once

ONE, TWO = (Sequence.start(prompt, SamplingParams()) for prompt in ([1, 2], [3]))
BOTH = frozenset({(1, 2), (3,)})


class Model:
    """Calls itself."""

    def forward(self, number: int) -> int:
        return self.embed(number) + 1

    def embed(self, number: int) -> int:
        return 2 * number


class Drafter:
    """Calls a model."""

    __slots__ = ("done", "model")

    def __init__(self, model: Model) -> None:
        self.model, self.done = model, 0

    def draft(self, sequences: Any) -> int:
        self.done += 1
        return self.model.forward(len(sequences))


def watched(fault: Any = None) -> tuple[Calls, Any, Any]:
    """Calls of a drafter and its model, and these, watched."""
    calls, drafter = Calls(), Drafter(Model())
    calls.begin(fault)
    stack = ExitStack()
    stack.enter_context(calls.watching(drafter, "drafter", ["draft", "begin"]))
    stack.enter_context(calls.watching(drafter.model, "model", ["forward", "embed"]))
    return calls, drafter, stack


def test_calls_are_counted_with_what_they_are_made_in() -> None:
    """Before and after, for whom; an object's calls of itself are part of its call."""
    calls, drafter, _stack = watched()
    assert [drafter.draft([ONE, TWO]), drafter.draft([ONE, TWO]), drafter.model.embed(4)] == [
        5,
        5,
        8,
    ]
    draft, forward = ("drafter.draft",), ("drafter.draft", "model.forward")
    assert calls.made == {
        Call(draft, False, BOTH): 2,
        Call(forward, False, BOTH): 2,
        Call(forward, True, BOTH): 2,
        Call(draft, True, BOTH): 2,
        Call(("model.embed",), False, frozenset()): 1,
    }


def test_an_object_stays_what_it_is() -> None:
    """Class, name and slots; and nothing is left when the watch ends."""
    _, drafter, stack = watched()
    assert isinstance(drafter, Drafter) and type(drafter) is not Drafter
    assert type(drafter).__name__ == "Drafter"
    stack.close()
    assert type(drafter) is Drafter


@pytest.mark.parametrize("after", [False, True])
def test_one_call_raises(after: bool) -> None:
    """The second, before or after its work, and no other; it says which it was."""
    calls, drafter, _stack = watched(Once(Call(("drafter.draft",), after, BOTH, 1)))
    drafter.draft([ONE, TWO])
    drafter.draft([ONE])  # not equal to the call that is meant
    with pytest.raises(Fault, match="number 2 of its kind"):
        drafter.draft([ONE, TWO])
    assert drafter.done == 2 + after
    drafter.draft([ONE, TWO])
    assert calls.raised == 1


def test_every_call_for_a_request_raises() -> None:
    """Also of what is called for it without saying so."""
    calls, drafter, _stack = watched(For("model.forward", False, (3,)))
    drafter.draft([ONE])
    for sequences in ([TWO], [ONE, TWO]):
        with pytest.raises(Fault):
            drafter.draft(sequences)
    drafter.model.forward(1)
    assert calls.raised == 2


def test_code_of_a_request() -> None:
    """A function belongs to the request that brought it."""
    calls = Calls()
    calls.begin(For("processor", False, (3,)))
    assert calls.watched("processor", abs, frozenset({(1, 2)}))(-1) == 1
    with pytest.raises(Fault):
        calls.watched("processor", abs, frozenset({(3,)}))(-1)


def test_functions_of_nobody_are_counted_within_each_other() -> None:
    """They belong to no object, so none of them is another one's own."""
    calls = Calls()
    calls.begin(None)
    inner = calls.watched("criterion", abs)
    assert calls.watched("processor", lambda number: inner(number))(-1) == 1
    paths = [("processor",), ("processor", "criterion")]
    assert calls.made == {Call(path, False, frozenset()): 1 for path in paths}

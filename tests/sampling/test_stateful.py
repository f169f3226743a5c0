"""Processors with a state: made for each sample, copied where drafts branch, called in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor

from folding import PATHS, VOCAB, logits_of, sequence
from foretoken import ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.nothing import Nothing
from foretoken.registry import build_verifier
from foretoken.sampling.fold import fold
from foretoken.sampling.params import LogitsProcessor
from foretoken.sampling.stateful import stateful
from foretoken.testing import (
    Drawn,
    Scripted,
    check_distribution,
    check_seeded,
    serve,
    table_pair,
    tiny_pair,
)
from foretoken.testing.checks import PROMPTS
from foretoken.tree import DraftTree
from foretoken.verify.target_only import TargetOnly


class Turns:
    """Favours a token by how often it was called and by the tokens it has seen so far: a call too
    many, too few or out of order is another text."""

    def __init__(self) -> None:
        self.calls, self.seen = 0, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.seen = 31 * self.seen + int(input_ids[0, -1])
        self.calls += 1
        favoured = scores.clone()
        favoured[:, (self.calls + self.seen) % scores.shape[-1]] += 1.5
        return favoured


def turning() -> LogitsProcessor:
    """As `Turns`, by a function that closes over its state."""
    calls = seen = 0

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        nonlocal calls, seen
        seen = 31 * seen + int(input_ids[0, -1])
        calls += 1
        favoured = scores.clone()
        favoured[:, (7 * calls + seen) % scores.shape[-1]] += 1.5
        return favoured

    return process


def in_a_default() -> LogitsProcessor:
    """Adds the number of its calls, which stands in a default argument."""

    def process(input_ids: Tensor, scores: Tensor, calls: list[int] = []) -> Tensor:  # noqa: B006
        calls.append(1)
        return scores + len(calls)

    return process


def in_a_keyword() -> LogitsProcessor:
    """The same in one that is given by name."""

    def process(input_ids: Tensor, scores: Tensor, *, calls: list[int] = []) -> Tensor:  # noqa: B006
        calls.append(1)
        return scores + len(calls)

    return process


def in_a_closure() -> LogitsProcessor:
    """The same in a variable that it closes over."""
    calls: list[int] = []

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        calls.append(1)
        return scores + len(calls)

    return process


class Holding:
    """A processor whose functions have the state."""

    def __init__(self, make: Callable[[], LogitsProcessor]) -> None:
        self.process, self.processors = make(), [make(), make()]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.process(input_ids, scores)

    def first(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.processors[0](input_ids, scores)


def apart(input_ids: Tensor, scores: Tensor, *, process: LogitsProcessor) -> Tensor:
    return process(input_ids, scores)


def counted_twice() -> LogitsProcessor:
    """Two functions share the count; one of them adds it, the other one counts."""
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    def add(input_ids: Tensor, scores: Tensor, *, count: Callable[[], None]) -> Tensor:
        count()
        return scores + calls

    return partial(add, count=count)


def as_a_method(make: Callable[[], LogitsProcessor]) -> LogitsProcessor:
    process = make()
    return MethodType(lambda self, *given: process(*given), object())


HOLDERS: dict[str, Callable[[Callable[[], LogitsProcessor]], LogitsProcessor]] = {
    "attribute": Holding,
    "list": lambda make: partial(lambda held, *given: held[0](*given), [make()]),
    "partial": lambda make: partial(make()),
    "keyword of a partial": lambda make: partial(apart, process=make()),
    "bound method": lambda make: Holding(make).first,
    "closure as a method": as_a_method,
}
"""Where a function with a state may be held."""


class Counting:
    """The same in an attribute."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores + self.calls


COUNTING = [in_a_default, in_a_keyword, in_a_closure, Counting, counted_twice]
COUNTING += [partial(holder, in_a_closure) for holder in HOLDERS.values()]
COUNTING += [partial(holder, in_a_default) for holder in HOLDERS.values()]

PARAMS = SamplingParams(
    logits_processor_factories=[Turns, turning],
    temperature=0.7,
    top_k=20,
    seed=3,
    max_tokens=24,
    ignore_eos=True,
)


def test_calls_along_each_path() -> None:
    """Each place has had the calls of its own path, whoever called before and however often; a
    factory makes one for each sequence."""
    made: list[Any] = []

    class Spy:
        def __init__(self) -> None:
            self.texts: list[list[int]] = []
            made.append(self)

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.texts.append(input_ids[0].tolist())
            expected = [self.texts[-1][:n] for n in range(3, len(self.texts[-1]) + 1)]
            assert self.texts == expected, self.texts
            return scores

    params = SamplingParams(logits_processor_factories=[Spy])
    one, other = sequence(params), sequence(params)
    for _ in range(2):  # the drafter's fold, and the target's
        folded = fold(logits_of(rows=2), [one, other], lambda: [PATHS, PATHS])
        assert not folded.errors
    assert len(made) == 4 and one.processors[0] is not other.processors[0]
    one.tokens += [3, 5, 8]  # the last is the bonus token
    assert not fold(logits_of(), [one], lambda: [[[], [4], [4, 4], [7]]]).errors
    fresh = one.afresh()  # after a pass that failed
    assert not fold(logits_of(), [fresh], lambda: [[[1], [1, 2], [], [4]]]).errors


def test_a_function_goes_on_by_itself() -> None:
    """Nothing is made anew, and no call repeated, where nothing branches."""
    made: list[LogitsProcessor] = []
    lengths: list[int] = []

    def make() -> LogitsProcessor:
        def look(input_ids: Tensor, scores: Tensor) -> Tensor:
            lengths.append(input_ids.shape[1])
            return scores

        made.append(look)
        return look

    one = sequence(SamplingParams(logits_processor_factories=[make]))
    for step in range(5):
        fold(logits_of()[:, :1], [one], lambda: [[[]]])
        one.tokens.append(step)
    assert len(made) == 1 and lengths == [3, 4, 5, 6, 7]


def counted(one: Any, paths: list[list[int]]) -> list[float]:
    """What a processor of `COUNTING` adds at the places of a pass."""
    nothing = torch.zeros(1, len(paths), VOCAB)
    return fold(nothing, [one], lambda: [paths]).logits[0, :, 0].tolist()


@pytest.mark.parametrize("factory", COUNTING)
def test_wherever_the_state_stands(factory: Any) -> None:
    """Each path of a tree has had its own calls, in each pass over it."""
    one = sequence(SamplingParams(logits_processor_factories=[factory]))
    for _ in range(2):
        assert counted(one, PATHS) == [len(path) + 1 for path in PATHS]


@pytest.mark.parametrize("factory", COUNTING)
def test_a_copy_of_the_text_goes_its_own_way(factory: Any) -> None:
    """A draft is written in a copy of its sequence: it moves no processor of the text on."""
    one = sequence(SamplingParams(logits_processor_factories=[factory]))
    assert counted(one, [[]]) == [1]
    one.tokens.append(3)
    for text in ([3], [3], [3, 7]):
        tokens = [*one.tokens[: one.prompt_length], *text]
        draft = replace(one, tokens=tokens, processors=[copy(p) for p in one.processors])
        assert counted(draft, [[], [4]]) == [len(text) + 1, len(text) + 2]
    assert counted(one, [[], [5]]) == [2, 3]


LENGTHS: list[int] = []
"""Of the texts that `look` was called for."""


def look(input_ids: Tensor, scores: Tensor) -> Tensor:
    LENGTHS.append(input_ids.shape[1])
    return scores


def test_a_function_without_a_state_is_called_once_for_each_place() -> None:
    """No call is repeated where drafts branch, nor in a copy of the text."""
    LENGTHS.clear()
    one = sequence(SamplingParams(logits_processor_factories=[lambda: look]))
    for step in range(5):
        draft = replace(one, processors=[copy(p) for p in one.processors])
        for each in (draft, one):
            fold(logits_of(), [each], lambda: [PATHS])
        one.tokens += [3, step + 10]
    assert len(LENGTHS) == 2 * 5 * len(PATHS)


@pytest.mark.parametrize("factory", [Turns, turning])
def test_what_is_kept_is_bounded(factory: Any) -> None:
    """The last text's state and those of the drafts after it, not those of the whole output."""
    one = sequence(SamplingParams(logits_processor_factories=[factory]))
    for step in range(20):
        fold(logits_of(), [one], lambda: [PATHS])
        one.tokens += [3, step % 7 + 10]
    [kept] = stateful(one)
    fold(logits_of(), [one], lambda: [PATHS])
    assert len(kept._called) <= 1 + len(PATHS)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("method", ["prompt_lookup", "token_recycling"])
@pytest.mark.parametrize("slots", [1, len(PROMPTS)])
def test_texts_are_plain_decodings(method: str, temperature: float, slots: int) -> None:
    """Chains and trees of chosen drafts, alone and in a batch."""
    params, rule = replace(PARAMS, temperature=temperature), build({"method": method}).verifier
    make = lambda pair: build({"method": method}).drafter  # noqa: E731
    check_seeded(make, rule, tiny_pair(), slots=slots, params=params)


@pytest.mark.parametrize("method", ["prompt_lookup", "token_recycling"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_texts_where_an_object_holds_the_function(method: str, holder: str) -> None:
    """Those of plain decoding with the function itself."""
    bare, pair = replace(PARAMS, logits_processor_factories=[turning]), tiny_pair()
    plain = [serve(pair.target, Nothing(), TargetOnly(), [p], bare)[0] for p in PROMPTS]
    held = replace(PARAMS, logits_processor_factories=[partial(HOLDERS[holder], turning)])
    check_seeded(
        lambda pair: build({"method": method}).drafter,
        build({"method": method}).verifier,
        pair,
        slots=len(PROMPTS),
        params=held,
        expected=[output.token_ids for output in plain],
    )


class Surprised:
    """Favours a token by the scores that it has seen, which its function remembers."""

    def __init__(self) -> None:
        total = 0.0

        def remember(scores: Tensor) -> int:
            nonlocal total
            total = 0.5 * total + float(scores.max())
            return int(100 * total)

        self.remember = remember

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        favoured = scores.clone()
        favoured[:, self.remember(scores) % scores.shape[-1]] += 1.5
        return favoured


def test_scores_that_a_held_function_remembers() -> None:
    """They are those of the text, whatever was drafted: nothing is made anew."""
    params = replace(PARAMS, logits_processor_factories=[Surprised])
    method = build({"method": "token_recycling"})
    check_seeded(lambda pair: method.drafter, method.verifier, tiny_pair(), params=params)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_branch_that_is_accepted_late(temperature: float) -> None:
    """Where the right path is a tree's last, after wrong ones with a common beginning."""
    params, pair = replace(PARAMS, temperature=temperature), tiny_pair()
    [plain] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1], params)
    text = plain.token_ids

    def paths(sequence: Any, budget: int) -> list[list[int]]:
        rest = text[len(sequence.output) :][:3]
        wrong = [(token + 1) % 97 for token in rest]
        return [wrong, [*rest[:1], *wrong[1:]], rest]

    [output] = serve(pair.target, Scripted(paths), TargetOnly(), PROMPTS[:1], params)
    assert output.token_ids == text and output.stats.passes < len(text)
    bare = replace(params, logits_processor_factories=())
    [other] = serve(pair.target, Nothing(), TargetOnly(), PROMPTS[:1], bare)
    assert other.token_ids != text


BRANCHED = {"rows": 256, "budget": 4, "steps": 1}
"""One step of a tree has outcomes enough to be followed."""


@pytest.mark.parametrize(("branches", "sizes"), [((1, 1), {}), ((2, 1), BRANCHED)])
def test_the_distribution_is_the_targets(branches: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Drawn chains and trees, by enumeration: the drafter's folds call the processor too."""
    params = SamplingParams(temperature=0.8, logits_processor_factories=[Turns])
    rule = build_verifier("multi_candidate")
    make = lambda pair: Drawn(pair.draft, branches)  # noqa: E731
    check_distribution(make, rule, table_pair(), params, **{"rows": 1, **sizes})


class Failing(Nothing):
    """Raises once, after some steps; drafts nothing."""

    steps = 0

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        self.steps += 1
        if self.steps == 6:
            raise RuntimeError("once")
        return super().draft(sequences, budgets, draws)


def test_a_batch_that_starts_again() -> None:
    """Texts are those of a batch in which nothing failed: the calls are made up for."""
    pair = tiny_pair()
    expected = serve(pair.target, Nothing(), TargetOnly(), PROMPTS, PARAMS)
    found = serve(pair.target, Failing(), TargetOnly(), PROMPTS, PARAMS)
    assert [o.token_ids for o in found] == [o.token_ids for o in expected]
    assert all(output.error is None for output in found)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda: None, "A logits processor raised TypeError: 'NoneType' object is not callable"),
        (lambda: lambda ids, scores: None, "A logits processor gave back None"),
        (lambda: 1 / 0, "A logits processor raised ZeroDivisionError"),
    ],
)
def test_factories_that_make_none(factory: Any, said: str) -> None:
    """One sentence; the request ends by it."""
    params = SamplingParams(logits_processor_factories=[factory], max_tokens=2)
    [output] = serve(tiny_pair().target, Nothing(), TargetOnly(), [[1, 2]], params)
    assert said in str(output.error)
    with pytest.raises(ForetokenError):
        output.raise_error()


class Locked(Turns):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Closed(Turns):
    """The same, in a function that it holds."""

    def __init__(self) -> None:
        super().__init__()
        lock = threading.Lock()
        self.locked = lambda: lock.locked()


@pytest.mark.parametrize("factory", [Locked, Closed])
def test_what_cant_be_copied(factory: Any) -> None:
    """The sentence names the copy, which the processor knows nothing of, and what to do."""
    params = SamplingParams(logits_processor_factories=[factory], max_tokens=4)
    [output] = serve(tiny_pair().target, Nothing(), TargetOnly(), [[1, 2]], params)
    said = str(output.error)
    assert said.startswith("Copying a logits processor raised TypeError: cannot pickle")
    assert "; give its class __deepcopy__, or keep outside of it what can't be copied." in said


def test_vocabulary_is_as_wide_as_it_is() -> None:
    """The scores that calls are made up with have the shape of a place's."""
    shapes: list[torch.Size] = []

    def look(input_ids: Tensor, scores: Tensor) -> Tensor:
        shapes.append(scores.shape)
        return scores

    one = sequence(SamplingParams(logits_processor_factories=[lambda: look]), [5, 6, 7])
    fold(logits_of(), [one], lambda: [PATHS])
    assert set(shapes) == {(1, VOCAB)}

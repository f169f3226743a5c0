"""Whatever raises in a step ends its own request, and is as if that had never been.

`foretoken.testing.faults` raises at every call of every method; here stand the cases with a name.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engines import GREEDY, PROMPTS, engine_of, finish, known
from foretoken import SamplingParams
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.engine.engine import Engine
from foretoken.protocols import BaseDrafter
from foretoken.testing import ByteTokenizer, Oracle, Pair
from foretoken.trees.from_lists import from_paths

Raises = Callable[..., Any]


class Faulty(PromptLookup):
    """Prompt lookup that raises in one of its verbs, for a sequence that begins with `bad` (or for
    any, at one call)."""

    verb = "draft"
    bad: list[int] | None = None
    at_call = 0
    calls = 0

    def _raise(self, verb: str, sequences: Any) -> None:
        if verb != self.verb:
            return
        self.calls += 1
        if self.bad is None and self.calls != self.at_call:
            return
        begins = [s.tokens[: len(self.bad or ())] for s in sequences]
        if self.bad is None or self.bad in begins:
            raise LookupError(verb)

    def begin(self, sequence: Any) -> None:
        super().begin(sequence)
        self._raise("begin", [sequence])

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
        self._raise("draft", sequences)
        return super().draft(sequences, budgets, draws)

    def observe(self, sequences: Any, steps: Any) -> None:
        super().observe(sequences, steps)
        if any(step.tokens for step in steps):
            self._raise("observe", sequences)

    def end(self, sequences: Any) -> None:
        self._raise("end", sequences)
        super().end(sequences)


def faulty(verb: str, bad: list[int] | None = None, at_call: int = 0) -> Faulty:
    drafter = Faulty()
    drafter.verb, drafter.bad, drafter.at_call = verb, bad, at_call
    return drafter


def check_at_rest(engine: Engine, pair: Pair) -> None:
    """Nothing runs, every slot is free, and the next request is served."""
    assert not engine.busy and engine.target.free == 3
    request = engine.add(PROMPTS[2], GREEDY)
    finish(engine)
    assert request.samples[0].output.token_ids == known(pair)[tuple(PROMPTS[2])]


@pytest.mark.parametrize("verb", ["begin", "draft", "observe"])
def test_a_drafter_that_fails_for_one_sequence(pair: Pair, verb: str) -> None:
    """Its request ends with what was raised; the others' texts are theirs."""
    engine = engine_of(pair, faulty(verb, bad=PROMPTS[1]))
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS]
    finish(engine)
    for prompt, request in zip(PROMPTS, requests, strict=True):
        if prompt == PROMPTS[1]:
            assert request.error is not None and f"LookupError: {verb}" in request.error
            assert request.samples[0].output.finish_reason == "error"
            assert isinstance(request.cause, LookupError)
        else:
            assert request.samples[0].output.token_ids == known(pair)[tuple(prompt)]
    check_at_rest(engine, pair)


@pytest.mark.parametrize("verb", ["draft", "observe"])
@pytest.mark.parametrize("call", [1, 3])
def test_a_drafter_that_fails_once(pair: Pair, verb: str, call: int, caplog: Any) -> None:
    """It isn't said for whom: each starts again alone, no text changes, and the log says so."""
    engine = engine_of(pair, faulty(verb, at_call=call))
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS[:3]]
    with caplog.at_level(logging.WARNING, "foretoken"):
        finish(engine)
    assert "start again, one by one" in caplog.text
    for prompt, request in zip(PROMPTS, requests, strict=False):
        assert request.error is None
        assert request.samples[0].output.token_ids == known(pair)[tuple(prompt)]
    assert engine.stats.tokens == 60
    check_at_rest(engine, pair)


def test_an_end_that_raises_loses_no_slot(pair: Pair, caplog: Any) -> None:
    """It is called once more; the text is whole, and the request fine."""
    engine = engine_of(pair, faulty("end", at_call=1))
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS[:3]]
    finish(engine)
    assert "called once more" in caplog.text
    assert all(request.error is None for request in requests)
    check_at_rest(engine, pair)


@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_target_whose_pass_fails_once(pair: Pair, call: int, monkeypatch: Any) -> None:
    """Memory that ran out, for one: nobody's text changes."""
    engine = engine_of(pair, PromptLookup())
    inner, calls = engine.target.score, 0

    def score(sequences: Any, trees: Any) -> Any:
        nonlocal calls
        calls += 1
        out = inner(sequences, trees)
        if calls == call:
            raise MemoryError("no room")
        return out

    monkeypatch.setattr(engine.target, "score", score)
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS[:3]]
    finish(engine)
    for prompt, request in zip(PROMPTS, requests, strict=False):
        assert request.samples[0].output.token_ids == known(pair)[tuple(prompt)]
    check_at_rest(engine, pair)


def test_a_pass_over_one_sequence_that_fails_is_its_own(pair: Pair, monkeypatch: Any) -> None:
    """There is nobody else whose it could be."""
    engine = engine_of(pair)

    def score(sequences: Any, trees: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine.target, "score", score)
        request = engine.add(PROMPTS[0], GREEDY)
        finish(engine)
    assert request.error == "The target's pass raised MemoryError: –"
    check_at_rest(engine, pair)


def test_a_criterion_that_raises(pair: Pair) -> None:
    """The rows behind it lose nothing."""

    def fails(output: Any) -> bool:
        if len(output) == 4:
            raise IndexError("four")
        return False

    engine = engine_of(pair, PromptLookup())
    requests = [
        engine.add(prompt, GREEDY, criterion=fails if i == 0 else None)
        for i, prompt in enumerate(PROMPTS)
    ]
    finish(engine)
    assert "IndexError: four" in str(requests[0].error)
    assert len(requests[0].samples[0].output.token_ids) <= 3
    for prompt, request in list(zip(PROMPTS, requests, strict=True))[1:]:
        assert request.samples[0].output.token_ids == known(pair)[tuple(prompt)]
    check_at_rest(engine, pair)


class Undecodable(ByteTokenizer):
    """A tokenizer that raises for more than `most` tokens."""

    most = 3

    def decode(self, ids: Any, **options: Any) -> str:
        if len(ids) > self.most:
            raise OverflowError("too long")
        return super().decode(ids, **options)


@pytest.mark.parametrize("stop", [(), "never"])
def test_a_tokenizer_that_raises(pair: Pair, stop: Any) -> None:
    """At the end, or at every token where stop strings are looked for."""
    engine = engine_of(pair, PromptLookup(), tokenizer=Undecodable())
    long = engine.add(PROMPTS[0], dataclasses.replace(GREEDY, stop=stop))
    short = engine.add(PROMPTS[1], dataclasses.replace(GREEDY, max_tokens=3))
    finish(engine)
    assert "OverflowError: too long" in str(long.error)
    assert short.error is None and short.samples[0].output.text
    engine.tokenizer.most = 99
    again = engine.add(PROMPTS[0], GREEDY)
    finish(engine)
    assert again.error is None and again.samples[0].output.text


def test_totals_without_the_failed(pair: Pair) -> None:
    """As if it had never been."""

    def fails(ids: Any, scores: Any) -> Any:
        if ids.shape[1] > len(PROMPTS[0]) + 10:
            raise IndexError
        return scores

    bad = dataclasses.replace(GREEDY, logits_processors=[fails])
    alone, beside = engine_of(pair, PromptLookup()), engine_of(pair, PromptLookup())
    for engine, prompts in ((alone, PROMPTS[1:3]), (beside, PROMPTS[:3])):
        for prompt in prompts:
            engine.add(prompt, bad if prompt is PROMPTS[0] else GREEDY)
        finish(engine)
    fields = [field.name for field in dataclasses.fields(beside.stats)]
    counts = [name for name in fields if not name.endswith("time") and name != "engine_steps"]
    for name in counts:
        assert getattr(alone.stats, name) == getattr(beside.stats, name), name


def test_a_processor_that_raises_for_a_draft_only(pair: Pair) -> None:
    """Plain decoding never asks it about that token, so nothing has happened."""
    text = known(pair)[tuple(PROMPTS[0])]

    class Wrong(BaseDrafter):
        def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
            written = len(sequences[0].tokens) - len(PROMPTS[0])
            token = (text[written] + 1) % 97 if written < len(text) else 0
            return from_paths([[[token, token]]], torch.device("cpu"))

    def strict(ids: Any, scores: Any) -> Any:
        output = ids[0, len(PROMPTS[0]) :].tolist()
        if output != text[: len(output)]:
            raise ValueError("an output that nobody writes")
        return scores

    for drafter in (None, Wrong()):
        engine = engine_of(pair, drafter)
        request = engine.add(PROMPTS[0], dataclasses.replace(GREEDY, logits_processors=[strict]))
        finish(engine)
        assert request.error is None and request.samples[0].output.token_ids == text


def test_one_sample_ends_its_request(pair: Pair) -> None:
    """All samples of a request end with the first that fails, those that wait too."""

    def fails(output: Any) -> bool:
        raise IndexError

    engine = engine_of(pair)
    params = SamplingParams(n=5, max_tokens=9, seed=1)
    bad, good = engine.add(PROMPTS[0], params, criterion=fails), engine.add(PROMPTS[1], GREEDY)
    finish(engine)
    assert [s.output.finish_reason for s in bad.samples] == ["error"] * 5
    assert good.samples[0].output.token_ids == known(pair)[tuple(PROMPTS[1])]
    check_at_rest(engine, pair)


def test_a_sample_that_ends_with_its_sibling_writes_nothing(pair: Pair) -> None:
    """Though the step has its tokens: nobody asks the criterion about them."""
    calls = 0

    def fails_once(output: Any) -> bool:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise IndexError
        return False

    engine = engine_of(pair)
    bad = engine.add(PROMPTS[0], SamplingParams(n=2, max_tokens=9, seed=1), criterion=fails_once)
    finish(engine)
    outputs = [sample.output for sample in bad.samples]
    assert [(o.finish_reason, o.token_ids) for o in outputs] == [("error", [])] * 2
    assert calls == 1 and engine.stats.tokens == 0
    check_at_rest(engine, pair)


@pytest.mark.parametrize("verb", ["pending", "holds"])
def test_a_target_that_fails_before_a_prompt_is_read(
    pair: Pair, verb: str, monkeypatch: Any
) -> None:
    """It was asked about one sequence, so one request ends."""
    engine = engine_of(pair)
    inner = getattr(engine.target, verb)

    def asked(sequence: Any) -> Any:
        if sequence.tokens[: len(PROMPTS[0])] == PROMPTS[0]:
            raise LookupError(verb)
        return inner(sequence)

    monkeypatch.setattr(engine.target, verb, asked)
    requests = [engine.add(prompt, GREEDY) for prompt in PROMPTS[:3]]
    finish(engine)
    assert "LookupError" in str(requests[0].error)
    for request in requests[1:]:
        assert request.samples[0].output.token_ids == known(pair)[tuple(request.prompt)]
    check_at_rest(engine, pair)


def test_what_ends_twice_is_learned_once(pair: Pair) -> None:
    """An end that raises after it has learned from the text is called again, and learns no more."""

    class Late(PromptLookup):
        fails = True

        def end(self, sequences: Any) -> None:
            super().end(sequences)
            if self.fails:
                raise LookupError("late")

    drafter = Late(max_cached_tokens=1000)
    engine = engine_of(pair, drafter)
    request = engine.add(PROMPTS[0], GREEDY)
    finish(engine)
    assert request.error is None and len(request.samples[0].output.token_ids) == 20
    assert drafter.shared is not None and drafter.shared.tokens == 20
    drafter.fails = False
    check_at_rest(engine, pair)


def test_nothing_is_learned_from_the_failed_or_from_a_new_start(pair: Pair) -> None:
    """Earlier outputs hold each text that was served, once."""
    drafter = Faulty(max_cached_tokens=1000)
    drafter.verb, drafter.bad = "draft", PROMPTS[1]
    engine = engine_of(pair, drafter)
    for prompt in PROMPTS[:3]:
        engine.add(prompt, GREEDY)
    finish(engine)
    assert drafter.shared is not None and drafter.shared.tokens == 40


def test_a_sequence_leaves_no_state(pair: Pair) -> None:
    """What drafters and targets keep with a sequence is freed with it, whoever still holds it."""
    engine = engine_of(pair, PromptLookup())
    request = engine.add(PROMPTS[0], GREEDY)
    engine.step()
    engine.step()
    assert request.samples[0].sequence.state
    finish(engine)
    assert not request.samples[0].sequence.state


class Leaving(PromptLookup):
    """Notes each text as it stands when it leaves."""

    def bind(self, access: Any) -> None:
        super().bind(access)
        self.left: list[list[int]] = []

    def end(self, sequences: Any) -> None:
        self.left += [list(sequence.tokens) for sequence in sequences]
        super().end(sequences)


def test_nothing_is_learned_from_a_text_that_failed(pair: Pair) -> None:
    """It leaves without its output; a cancelled one leaves with what was emitted."""

    def fails(output: Any) -> bool:
        if len(output) > 3:
            raise IndexError
        return False

    drafter = Leaving()
    engine = engine_of(pair, drafter)
    engine.add(PROMPTS[0], GREEDY, criterion=fails)
    finish(engine)
    other = engine.add(PROMPTS[1], GREEDY)
    for _ in range(3):
        engine.step()
    engine.cancel(other.id)
    written = other.samples[0].output.token_ids
    assert written and drafter.left == [PROMPTS[0], PROMPTS[1] + written]


def test_the_error_is_that_of_the_place(pair: Pair) -> None:
    """A processor that raises in the middle of an accepted draft: its own message, and the tokens
    before that place."""
    text = known(pair)[tuple(PROMPTS[0])]

    def fails(ids: Any, scores: Any) -> Any:
        if ids.shape[1] == len(PROMPTS[0]) + 2:
            raise ValueError("not after two tokens")
        return scores

    engine = engine_of(pair, Oracle({tuple(PROMPTS[0]): text}, 6))
    request = engine.add(PROMPTS[0], dataclasses.replace(GREEDY, logits_processors=[fails]))
    finish(engine)
    assert request.error is not None and "not after two tokens" in request.error
    assert request.samples[0].output.token_ids == text[:2]

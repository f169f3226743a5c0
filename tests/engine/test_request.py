"""A request and its samples: what each starts with, and what is added token by token."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.engine.outputs import Logprob
from foretoken.engine.request import Request
from foretoken.testing import ByteTokenizer, Pair, serve
from foretoken.verify.target_only import TargetOnly

BYTES = ByteTokenizer()


def request(**options: Any) -> Request:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 9, **options})
    return Request([1, 2], params, "ab", 7, params.max_tokens or 9, frozenset({5}), BYTES)


def test_samples_share_the_prompt_and_differ_in_their_seed() -> None:
    """n samples, each with its own sequence and number, all of one prompt."""
    one, two = request(n=2, temperature=1.0).samples
    assert one.sequence.tokens == two.sequence.tokens == [1, 2]
    assert one.sequence.tokens is not two.sequence.tokens
    assert one.sequence.key != two.sequence.key
    assert (one.output.index, two.output.index) == (0, 1)


@pytest.mark.parametrize(("options", "ends"), [({}, {5, 8}), ({"ignore_eos": True}, {8})])
def test_the_ends_of_a_sequence(options: dict[str, Any], ends: set[int]) -> None:
    """End-of-text tokens, unless they are ignored, and the request's stop tokens."""
    [sample] = request(stop_token_ids=[8], **options).samples
    assert sample.sequence.end_ids == frozenset(ends)


def test_what_a_sample_writes() -> None:
    """Tokens, which of them were drafted, log-probabilities, and the text at the end."""
    mine = request(logprobs=1, max_tokens=3)
    [sample] = mine.samples
    assert sample.left == 3 and not mine.finished
    logprobs = [({4: Logprob(-0.5, 1)}, -0.5), ({4: Logprob(-0.25, 1)}, -0.25), ({}, 0.0)]
    sample.emit(sample.check(BYTES.encode("heyday")), 2, logprobs)
    assert (sample.left, sample.output.accepted) == (0, [True, True, False])
    assert sample.output.cumulative_logprob == -0.75
    assert (sample.output.text, sample.output.finish_reason) == ("hey", "length")
    assert mine.finished and mine.snapshot().text == "hey"


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("stop", ["y", "z"])
def test_the_token_that_ends_a_text_is_no_part_of_it(stop: str, include: bool) -> None:
    """But where it is asked for: neither a request's own token nor the model's end."""
    more: dict[str, Any] = {"include_stop_str_in_output": include, "skip_special_tokens": False}
    [sample] = request(stop_token_ids=BYTES.encode(stop), stop="no", **more).samples
    said = sample.check([*BYTES.encode("ha"), *(BYTES.encode("y") if stop == "y" else [5])])
    assert said.tokens[-1] in (5, *BYTES.encode("y")) and said.finish_reason == "stop"
    assert said.text == "ha" + BYTES.decode(said.tokens[-1:]) * include


def test_a_criterion_s_last_token_stays() -> None:
    params = SamplingParams(temperature=0, max_tokens=9)
    mine = Request([1], params, None, 7, 9, frozenset({5}), BYTES, lambda ids: len(ids) > 1)
    assert mine.samples[0].check(BYTES.encode("hey")).text == "he"


def test_checking_writes_nothing() -> None:
    """What a tokenizer or criterion raises while a block is read leaves the output as it was."""
    [sample] = request(stop="x").samples
    sample.emit(sample.check(BYTES.encode("he")), 0, [])
    sample.check(BYTES.encode("llo"))
    assert (sample.output.text, len(sample.output.token_ids)) == ("he", 2)


class Undecodable(ByteTokenizer):
    """A tokenizer that can't decode one byte."""

    def decode(self, ids: Any, **options: Any) -> str:
        if BYTES.encode("?")[0] in ids:
            raise OverflowError("?")
        return super().decode(ids, **options)


class Counting(ByteTokenizer):
    """Counts the tokens that it is given."""

    given = 0

    def decode(self, ids: Any, **options: Any) -> str:
        self.given += len(ids)
        return super().decode(ids, **options)


@pytest.mark.parametrize("aborted", [False, True])
def test_broken_bytes_of_a_long_output(aborted: bool) -> None:
    """No step looks for the text of all of them, as everybody waits for it; nor does the end."""
    tokenizer, most = Counting(), 0
    broken = [i for i in range(256) if "\ufffd" in BYTES.decode([i])][:1] * 10
    params = SamplingParams(temperature=0, max_tokens=3000)
    [sample] = Request([1], params, None, 7, 3000, frozenset(), tokenizer).samples
    for step in range(300):
        tokenizer.given = 0
        if aborted and step == 299:
            sample.abort("timeout")
        else:
            sample.emit(sample.check(broken), 0, [])
        most = max(most, tokenizer.given)
    assert sample.ended and most < 20_000
    assert sample.output.text == "\ufffd" * len(sample.output.token_ids)


def test_an_aborted_sample_keeps_what_was_written() -> None:
    """Its tokens, and its text as far as it can be read."""
    mine = request()
    [sample] = mine.samples
    sample.emit(sample.check(BYTES.encode("he")), 0, [])
    sample.abort("timeout")
    assert mine.finished and (sample.output.text, sample.output.finish_reason) == ("he", "timeout")
    mine = Request([1], SamplingParams(max_tokens=9), None, 7, 9, frozenset(), Undecodable())
    [sample] = mine.samples
    sample.emit(sample.check(BYTES.encode("h?")), 0, [])
    sample.abort("error")
    assert sample.output.finish_reason == "error" and sample.output.text == ""


def test_the_first_token_is_timed_once() -> None:
    """The time to the first token stays; the total grows."""
    mine = request()
    mine.note_time()
    first = mine.stats.time_to_first_token
    mine.note_time()
    assert mine.stats.time_to_first_token == first
    assert first is not None and mine.stats.total_time is not None
    assert mine.stats.total_time >= first


def test_times_begin_when_it_was_asked_for() -> None:
    """Which may be a while before the engine takes it."""
    params = SamplingParams(temperature=0, max_tokens=9)
    given = [1, 2], params, "ab", 7, 9, frozenset({5}), BYTES
    mine = Request(*given, arrived=perf_counter() - 50)
    mine.note_start()
    mine.note_time()
    first, queued = mine.stats.time_to_first_token, mine.stats.queue_time
    assert first is not None and queued is not None and 50 <= queued <= first < 100


def test_the_queue_time_is_the_first_samples() -> None:
    """A later one may wait for a slot much longer."""
    mine = request(n=2)
    mine.note_start()
    queued = mine.stats.queue_time
    mine.stats.arrived -= 10
    mine.note_start()
    assert mine.stats.queue_time == queued


def test_what_a_text_goes_on_from() -> None:
    """The prompt, where it was a text, and nothing where an encoder–decoder begins its own."""
    params = SamplingParams(temperature=0, max_tokens=9)
    given = 7, 9, frozenset({5}), BYTES
    assert Request([1, 2], params, "ab", *given).before == (1, 2)
    assert Request([1, 2], params, None, *given).before == ()
    assert Request([1, 2], params, "ab", *given, opening=[3]).before == ()


def test_the_whole_time_is_that_of_the_last_token(pair: Pair) -> None:
    """Tokens a second are counted by it, so that it isn't the first token's."""
    params = SamplingParams(temperature=0, max_tokens=12)
    began = perf_counter()
    [output] = serve(pair.target, Nothing(), TargetOnly(), [[1, 2]], params)
    took = perf_counter() - began
    first, whole = output.stats.time_to_first_token, output.stats.total_time
    assert first is not None and whole is not None
    assert first < whole <= took

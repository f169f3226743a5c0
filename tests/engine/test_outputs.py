"""What a user gets back: short cuts for one sample, and errors that are not read over."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from foretoken.engine.outputs import CompletionOutput, Draft, RequestOutput
from foretoken.engine.stats import RequestStats
from foretoken.errors import ForetokenError


def output(*samples: CompletionOutput, error: str | None = None) -> RequestOutput:
    return RequestOutput(0, "a", [1], list(samples), RequestStats(), error)


def test_one_sample_is_read_directly() -> None:
    """Text and tokens of the only sample; of several they must be picked."""
    one, two = CompletionOutput(0, "x", [4]), CompletionOutput(1, "y", [5])
    assert (output(one).text, output(one).token_ids) == ("x", [4])
    with pytest.raises(ForetokenError, match=r"has 2 samples; read .outputs\[i\]"):
        _ = output(one, two).text


def test_an_error_is_raised_where_the_text_is_read() -> None:
    """A request that failed has no text to mistake for an answer."""
    with pytest.raises(ForetokenError, match="no numbers"):
        _ = output(CompletionOutput(0, "x"), error="no numbers").text


def test_a_copy_grows_no_more() -> None:
    """Its lists are its own."""
    sample = CompletionOutput(0, logprobs=[], drafts=[])
    copied = output(sample).copy().outputs[0]
    lists = (sample.token_ids, sample.accepted, sample.logprobs, sample.drafts)
    assert not any(
        mine is its
        for mine in lists
        for its in (copied.token_ids, copied.accepted, copied.logprobs, copied.drafts)
    )


def test_what_stands_costs_its_length_only() -> None:
    """A stream that nobody reads has an output for each step, and no list of all tokens for each.
    Whenever it is read, an output is what it was, whatever has been written since."""
    sample = CompletionOutput(0, logprobs=[], drafts=[])
    whole, kept = output(sample), list[Callable[[], RequestOutput]]()
    whole.prompt_logprobs = [None]
    draft = Draft([7], [0], [1], 1, 0.1)
    tracemalloc.start()
    for step in range(2000):
        sample.text = str(step)
        sample.token_ids.append(step)
        sample.accepted.append(step % 2 == 0)
        assert sample.logprobs is not None and sample.drafts is not None
        sample.logprobs.append({})
        sample.drafts.append(draft)
        whole.stats.passes = step
        kept.append(whole.standing())
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 2000 * 5000  # lists of all tokens would be 32 MB each
    for step in (0, 999, 1999):
        then, [found] = kept[step](), kept[step]().outputs
        assert found.token_ids == list(range(step + 1)) and found.text == str(step)
        others = found.accepted, found.logprobs or (), found.drafts or ()
        assert [len(other) for other in others] == [step + 1] * 3
        assert then.stats.passes == step and then.prompt_logprobs == [None]
    assert kept[0]().outputs[0].token_ids is not kept[0]().outputs[0].token_ids


def test_finished_when_every_sample_is() -> None:
    """One that runs keeps the request unfinished; a refused request has none and is finished."""
    ended, running = CompletionOutput(0, finish_reason="stop"), CompletionOutput(1)
    assert not output(ended, running).finished
    assert output(ended).finished and output().finished

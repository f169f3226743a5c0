"""What a user gets back: short cuts for one sample, and errors that are not read over."""

from __future__ import annotations

import pytest

from foretoken.engine.outputs import CompletionOutput, RequestOutput
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


def test_finished_when_every_sample_is() -> None:
    """One that runs keeps the request unfinished; a refused request has none and is finished."""
    ended, running = CompletionOutput(0, finish_reason="stop"), CompletionOutput(1)
    assert not output(ended, running).finished
    assert output(ended).finished and output().finished

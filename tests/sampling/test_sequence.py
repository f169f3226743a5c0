"""Sequences: what a sample starts from, and the random numbers of a batch."""

from __future__ import annotations

import torch

from foretoken import SamplingParams
from foretoken.draws import GreedyDraws, KeyedDraws
from foretoken.sampling.sequence import Sequence, draws_for

CPU = torch.device("cpu")


def test_start_copies_the_prompt() -> None:
    """Tokens that are written later are output; the caller's list stays as it was."""
    prompt = [5, 6]
    sequence = Sequence.start(prompt, SamplingParams(), seed=3)
    sequence.tokens.append(7)
    assert (prompt, sequence.output) == ([5, 6], [7])


def test_the_key_is_of_seed_and_sample() -> None:
    """Samples of a request differ; a greedy one has no key, for it draws nothing."""
    keys = {Sequence.start([1], SamplingParams(), seed=3, sample=i).key for i in range(50)}
    assert len(keys) == 50
    assert Sequence.start([1], SamplingParams(), seed=3).key in keys
    assert Sequence.start([1], SamplingParams(temperature=0), seed=3).key == 0


def test_a_greedy_batch_draws_nothing() -> None:
    """One sampled sequence in the batch is enough for keyed draws."""
    greedy = Sequence.start([1], SamplingParams(temperature=0))
    sampled = Sequence.start([1], SamplingParams(), seed=1)
    assert isinstance(draws_for([greedy, greedy], CPU), GreedyDraws)
    assert isinstance(draws_for([greedy, sampled], CPU), KeyedDraws)


def test_a_sequence_that_starts_again() -> None:
    """Its text, its numbers and its ends are what they were; nobody has seen it, and it shares
    nothing."""
    ends = {"end_ids": frozenset({1}), "late_ids": frozenset({4})}
    first = Sequence.start([5, 6], SamplingParams(), seed=3, sample=2, source=[8], **ends)
    first.tokens.append(7)
    first.salt, first.reusable, first.state["x"] = "a", 1, 1
    again = first.afresh()
    assert again.tokens == [5, 6, 7] and again.tokens is not first.tokens
    for name in ("prompt_length", "params", "key", "end_ids", "late_ids", "source"):
        assert getattr(again, name) == getattr(first, name), name
    assert again.late_ids == {1, 4}
    assert (again.salt, again.reusable, again.state) == (None, 0, {}) and again.id != first.id

"""Counting: every number of a known run, and nothing after a stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import fields
from typing import Any

import pytest

from engines import GREEDY, PROMPTS, engine_of, finish, known
from foretoken import SamplingParams
from foretoken.engine.stats import AcceptanceStats, RequestStats
from foretoken.testing import (
    Oracle,
    Pair,
    serve,
)
from foretoken.verify.target_only import TargetOnly


def test_counts_of_a_known_run(pair: Pair) -> None:
    """Drafts of 4 of which the third goes wrong: 3 tokens a pass, and every number follows."""
    params = SamplingParams(temperature=0, max_tokens=20)
    engine = engine_of(pair, Oracle(known(pair), 4, wrong_at=2))
    requests = [engine.add(prompt, params) for prompt in PROMPTS[:2]]
    finish(engine)
    for request in requests:
        stats, output = request.stats, request.samples[0].output
        assert (stats.tokens, stats.passes, stats.drafted, stats.accepted) == (20, 7, 25, 13)
        assert (stats.accepted_at, stats.drafted_at) == ([7, 6, 0, 0], [7, 6, 6, 6])
        assert stats.mean_acceptance_length == 20 / 7
        assert stats.draft_acceptance_rate == 13 / 25
        assert output.accepted == [True, True, False] * 6 + [True, False]
        assert stats.total_time >= stats.time_to_first_token > 0  # type: ignore[operator]
    totals = AcceptanceStats()
    for request in requests:
        totals.add(request.stats)
    assert totals.accepted_at == engine.stats.accepted_at == [14, 12, 0, 0]
    assert (engine.stats.tokens, engine.stats.drafted) == (40, 50)
    assert engine.stats.engine_steps == 7
    assert set(engine.stats.ms_per_step) == {"draft", "verify", "other"}
    spent = sum(engine.stats.ms_per_step.values()) * engine.stats.engine_steps / 1000
    assert engine.stats.decode_time == pytest.approx(spent)
    engine.reset_stats()
    assert engine.stats.tokens == 0


def test_counts_stop_where_the_text_stops(pair: Pair) -> None:
    """Tokens that were accepted after a stop are neither emitted nor counted."""
    text = known(pair)[tuple(PROMPTS[0])]
    end = frozenset({text[4]})
    drafter = Oracle(known(pair), 10)
    [output] = serve(pair.target, drafter, TargetOnly(), PROMPTS[:1], GREEDY, eos_ids=end)
    length = text.index(text[4]) + 1
    assert output.token_ids == text[:length]
    assert (output.stats.tokens, output.stats.accepted) == (length, length)
    assert sum(output.stats.accepted_at) == length
    assert output.outputs[0].accepted == [True] * length


def test_nothing_drafted_is_zero_not_nan() -> None:
    """Rates of empty counts."""
    stats = AcceptanceStats()
    assert (stats.mean_acceptance_length, stats.draft_acceptance_rate) == (0.0, 0.0)
    assert stats.acceptance_rate_per_position == []


def test_totals_of_several_requests() -> None:
    """Numbers are summed, positions one by one where one list is longer, drafters by name."""
    one = AcceptanceStats(5, 2, 2, 6, 3, 1, [2, 2, 2], [2, 1, 0], Counter(pld=2))
    two = AcceptanceStats(3, 3, 1, 1, 0, 0, [1], [0], Counter(pld=1, sps=2))
    one.add(two)
    assert one == AcceptanceStats(8, 5, 3, 7, 3, 1, [3, 2, 2], [2, 1, 0], Counter(pld=3, sps=2))
    assert one.stray_rate == 1 / 8


def test_totals_without_one_request() -> None:
    """What was added is taken out again, drafters' names with it."""
    one = AcceptanceStats(5, 2, 2, 6, 3, 1, [2, 2, 2], [2, 1, 0], Counter(pld=2))
    both = AcceptanceStats(5, 2, 2, 6, 3, 1, [2, 2, 2], [2, 1, 0], Counter(pld=2))
    other = AcceptanceStats(3, 3, 1, 1, 0, 1, [1], [0], Counter(pld=1, sps=2))
    both.add(other)
    both.remove(other)
    assert both == one


def test_every_number_is_added_and_taken_out() -> None:
    """Whichever numbers there are."""
    names = [field.name for field in fields(AcceptanceStats) if field.type == "int"]
    lists: dict[str, Any] = {"drafted_at": [3], "accepted_at": [2], "chosen": Counter(pld=1)}
    one = AcceptanceStats(**{name: n for n, name in enumerate(names, 1)}, **lists)
    both = AcceptanceStats()
    both.add(one)
    assert both == one
    both.add(one)
    assert [getattr(both, name) for name in names] == [2 * n for n in range(1, len(names) + 1)]
    both.remove(one)
    both.remove(one)
    assert dict(both.chosen) == {}  # as if it had never been
    both.add(one)
    assert both == one and len(names) == len(fields(AcceptanceStats)) - len(lists)


def test_totals_never_have_more_positions_than_drafts() -> None:
    """The deepest drafts are taken out: rates are of what is left."""
    one = AcceptanceStats(3, 1, 1, 2, 1, 0, [1, 1], [1, 0])
    deeper = AcceptanceStats(2, 1, 1, 4, 1, 0, [1, 1, 1, 1], [1, 1, 0, 0])
    both = AcceptanceStats()
    both.add(one)
    both.add(deeper)
    both.remove(deeper)
    assert both == one and both.acceptance_rate_per_position == [1.0, 0.0]


def test_a_request_that_fails_after_a_reset(pair: Pair) -> None:
    """Totals lose what was counted of it since: they are its neighbour's alone."""
    engine = engine_of(pair, Oracle(known(pair), 4, wrong_at=2))
    params = SamplingParams(temperature=0, max_tokens=20)
    kept = engine.add(PROMPTS[0], params)

    def fails_late(output: Seq[int]) -> bool:
        if len(output) > 12:
            raise LookupError
        return False

    failing = engine.add(PROMPTS[1], params, criterion=fails_late)
    for _ in range(3):
        engine.step()
    engine.reset_stats()
    before = kept.stats.copy()
    assert failing.stats.tokens and failing.error is None
    engine.step()
    assert engine.stats.tokens > kept.stats.tokens - before.tokens  # both are counted
    finish(engine)
    assert failing.error is not None and kept.error is None
    since = kept.stats.copy()
    since.remove(before)
    for name in (field.name for field in fields(AcceptanceStats)):
        assert getattr(engine.stats, name) == getattr(since, name), name
    assert engine.stats.acceptance_rate_per_position == since.acceptance_rate_per_position


def test_a_copy_stays_as_it_is() -> None:
    """Whatever is counted afterwards."""
    stats = RequestStats()
    stats.record(2, 3, 1, 3)
    stats.chosen["a"] += 1
    copy = stats.copy()
    assert copy == stats
    stats.record(2, 4, 2, 4)
    stats.chosen["a"] += 1
    assert (copy.drafted_at, copy.accepted_at, copy.chosen["a"]) == ([1, 1, 1], [1, 0, 0], 1)

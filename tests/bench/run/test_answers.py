"""What an answer records, and a group's equal shares of what it took."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarked import CHATS, SUITE, Breaks, Pair, plan, unit
from foretoken.bench.plan import (
    seed_of,
)
from foretoken.bench.run.runner import Runner


def test_a_group_shares_its_time_equally(runner: Runner) -> None:
    """Only what each waited for is its own; a batch's passes are counted once."""
    for method in runner.labels:
        found = runner.serve(unit(*CHATS, size=2))
        first, second = (a for a in found if a.method == method and a.turn == 0)
        for part in ("prefill", "draft", "verify", "other"):
            assert first.seconds[part] == second.seconds[part]
        assert 2 * first.engine_steps == max(first.passes, second.passes)
        assert first.decodings == second.decodings and len(first.decodings) == 3
        assert first.decoding == pytest.approx(sorted(first.decodings)[1])


def test_shares_add_up_to_the_engines_own_clock(checkpoints: Pair) -> None:
    """Prefill, draft, verify and other, of every method."""
    runner = Runner(plan(checkpoints, batch_sizes=(2,)))
    found = runner.serve(unit(SUITE.prompts[1], SUITE.prompts[2], size=2))
    for method, llm in runner.llms.items():
        own = [a.seconds for a in found if a.method == method]
        times = {part: sum(seconds[part] for seconds in own) for part in own[0]}
        assert times["prefill"] == pytest.approx(llm.stats.prefill_time)
        assert times["draft"] == pytest.approx(llm.stats.draft_time)
        assert times["verify"] == pytest.approx(llm.stats.verify_time)
        assert times["other"] == pytest.approx(llm.stats.other_time)


def test_what_an_answer_says(runner: Runner) -> None:
    """Its tokens, their text, seed and claim; approximate methods' numbers are absent."""
    for one in runner.serve(unit(CHATS[0], temperature=1.0)):
        claimed = one.method != "sps"
        assert (one.sameness in {"identical", "near_tie"}) if claimed else one.sameness is None
        assert len(one.token_ids) == len(one.accepted) == len(one.pieces)
        assert "".join(one.pieces) == one.text
        assert one.seed == seed_of(0, "chat-1", one.turn) and one.dtype == "float32"
        assert one.prompt_tokens > len(one.prompt) and one.error is None
        assert one.log_likelihood is None and one.strayed == 0
    assert seed_of(0, "chat-1", 0) != seed_of(0, "chat-2", 0) != seed_of(1, "chat-2", 0)


def test_a_failed_repeat_is_a_failed_answer(checkpoints: Pair) -> None:
    """However many of the others succeeded."""
    runner = Runner(plan(checkpoints, repeats=3, methods={"pld": {"method": "pld"}}))
    Breaks(runner, "pld")
    [_, pld] = runner.serve(unit(SUITE.prompts[1]))
    assert pld.error is not None and not pld.token_ids


def test_a_group_shares_its_joules(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does its time; a machine that doesn't count has none."""
    for joules in (6.0, None):
        counter = SimpleNamespace(reset=lambda: None, joules=lambda joules=joules: joules)
        monkeypatch.setattr(runner, "_energy", counter)
        found = runner.serve(unit(SUITE.prompts[1], SUITE.prompts[2], size=2))
        assert {a.energy_j for a in found} == {joules and joules / 2}

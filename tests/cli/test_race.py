"""The demo's race: what it records of an answer, and how it is shown."""

from __future__ import annotations

import io

from rich.console import Console

from foretoken import LLM, SamplingParams
from foretoken.bench.report import wording
from foretoken.cli import race
from foretoken.cli.race import Written


def test_an_answer_as_it_came() -> None:
    """Every token's text, moment and whether it was drafted; a step's tokens come together."""
    params = SamplingParams(temperature=0, max_tokens=24)
    asked = [{"role": "user", "content": "Say one two three one two three one two three."}]
    with LLM("mini", speculative_config={"method": "pld"}) as llm:
        found = race.written(llm, "drafts", asked, params)
        [out] = llm.chat(asked, params)
    assert "".join(found.pieces) == out.text and found.accepted == out.outputs[0].accepted
    assert len(found.moments) == len(out.token_ids) and found.moments == sorted(found.moments)
    assert len(set(found.moments)) <= out.stats.passes
    assert found.by(0.0) == 0 and found.by(found.seconds) == len(found.moments)


def test_both_stand_side_by_side() -> None:
    """Through a pipe as they ended, each with its tokens and its time."""
    racers = [
        Written(wording.spelled("autoregressive"), ["so", " it"], [False, False], [0.5, 1.5]),
        Written(wording.spelled("pld"), ["so", " it"], [False, True], [0.75, 0.75]),
    ]
    console = Console(file=io.StringIO(), width=100)
    race.show(console, racers)
    shown = console.file.getvalue()
    assert "plain decoding" in shown and "prompt lookup (pld)" in shown
    assert "so it" in shown and "so⟦ it⟧" in shown
    assert "2 tokens · 1.50 s" in shown and "0.75 s" in shown


def test_of_a_long_answer_the_end_is_shown() -> None:
    """As it grows; through a pipe all of it."""
    pieces = [f"line {i}\n" for i in range(60)] + ["The end."]
    racers = [Written("drafts", pieces, [False] * 61, [0.01 * i for i in range(61)])]

    def lines(console: Console) -> str:
        shown: str = console.file.getvalue()  # type: ignore[attr-defined]
        return shown

    screen = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    screen.print(race.picture(racers, 1.0, coloured=True))
    assert "The end." in lines(screen) and "line 0 " not in lines(screen)
    assert len(lines(screen).splitlines()) == 18
    pipe = Console(file=io.StringIO(), width=60)
    race.show(pipe, racers)
    assert "The end." in lines(pipe) and "line 0 " in lines(pipe)


def test_drafts_are_green_where_there_are_colours() -> None:
    """Without them, as through a pipe, green would say nothing."""
    racers = [Written("drafts", ["so", " it"], [False, True], [0.0, 0.0])]
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    race.show(console, racers)
    shown = console.file.getvalue()
    assert "\x1b[1;32m it" in shown and "⟦" not in shown


def test_a_short_race_is_shown_slower() -> None:
    """So that it can be watched; a long one at its own speed."""
    assert race.slowed([Written("a", ["x"], [False], [0.5])]) == 12
    assert race.slowed([Written("a", ["x"], [False], [9.0])]) == 1
    assert race.slowed([Written("a", ["x"], [False], [60.0])]) == 1
    assert race.slowed([Written("a", [], [], [])]) == 1

"""Vicuna's template, letter by letter."""

from __future__ import annotations

from foretoken.bench.suites.vicuna import SYSTEM, written


def test_turns_and_answers() -> None:
    """One space after a user's turn, none after an answer's end; nothing after where the next
    answer begins."""
    assert written(["Hi."], []) == f"{SYSTEM} USER: Hi. ASSISTANT:"
    assert written(["Hi.", "So?"], [" Ho.\n"], "Be brief.") == (
        "Be brief. USER: Hi. ASSISTANT: Ho.</s>USER: So? ASSISTANT:"
    )
    assert SYSTEM.endswith(" polite answers to the user's questions.")

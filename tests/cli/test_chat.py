"""`foretoken chat`: a conversation through a pipe."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from command_line import Pair, Saying, Terminal, model, run
from foretoken.cli import chat
from foretoken.sampling.params import SamplingParams


def test_chat_through_a_pipe(checkpoints: Pair) -> None:
    """Answers on standard output, notes on the other; /reset and /quit do what they say."""
    lines = "Hello\n/what\n\nAnd then?\n/reset\nHello\n/quit\nnot read\n"
    found = run("chat", *model(checkpoints), "--method", "pld", typed=lines)
    assert found.exit_code == 0
    notes = found.stderr.splitlines()
    assert len(notes) == 5  # three answers, a wrong command, the totals
    assert "no command '/what'" in notes[1] and notes[-1].startswith("In all: 36 tokens")
    shown = run("chat", *model(checkpoints), typed="Hello\n").stdout
    assert found.stdout.startswith(shown) and found.stdout.endswith(shown)


def test_chat_survives_a_prompt_that_is_too_long(checkpoints: Pair) -> None:
    """It says what to do, and the next line is answered."""
    found = run("chat", *model(checkpoints), typed="word " * 5000 + "\nHello\n")
    assert found.exit_code == 0 and "/reset" in found.stderr and found.stdout.strip()


def test_a_terminal_obeys_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model wrote is visible; the history has it as it was."""
    llm: Any = Saying("a\x1b", "[2J\x9b\r", "b")
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    answer = chat._Conversation(llm, SamplingParams(), None)._answer([])
    assert answer == "a\x1b[2J\x9b\rb"
    assert terminal.getvalue() == "a\\x1b[2J\\x9b\\rb\n"

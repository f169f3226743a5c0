"""`foretoken chat`: a conversation through a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
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


class Stopped(Saying):
    """Ctrl-C comes after what it says."""

    def stream(self, *arguments: Any) -> Iterator[Any]:
        self.asked = arguments[0]
        yield from super().stream(*arguments)
        raise KeyboardInterrupt


def test_ctrl_c_ends_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a terminal: what was written stays in the conversation, which goes on."""
    monkeypatch.setattr(sys, "stdin", Terminal())
    llm: Any = Stopped("Once", " upon")
    talk = chat._Conversation(llm, SamplingParams(), None)
    talk._turn("Tell me a story.")
    shown = capsys.readouterr()
    assert shown.out == "Once upon\n" and "interrupted" in shown.err
    talk._turn("Go on.")
    assert [message["content"] for message in llm.asked] == [
        "Tell me a story.",
        "Once upon",
        "Go on.",
    ]
    nothing: Any = Stopped()
    assert chat._Conversation(nothing, SamplingParams(), None)._answer([]) == ""


def test_ctrl_c_ends_what_reads_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is there to go on; the seconds of the answer are counted."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    llm: Any = Stopped("Once")
    talk = chat._Conversation(llm, SamplingParams(), None)
    with pytest.raises(KeyboardInterrupt):
        talk._turn("Tell me a story.")
    assert talk._seconds > 0


def test_a_new_conversation_begins_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the system message, and nothing of what was said."""
    asked: list[list[dict[str, str]]] = []

    class Noting(Saying):
        def stream(self, *given: Any) -> Iterator[Any]:
            asked.append(given[0])
            return super().stream(*given)

    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n/reset\nthree\n"))
    llm: Any = Noting("Yes.")
    chat._Conversation(llm, SamplingParams(), "Be brief.").run()
    said = [[message["content"] for message in messages] for messages in asked]
    assert said == [
        ["Be brief.", "one"],
        ["Be brief.", "one", "Yes.", "two"],
        ["Be brief.", "three"],
    ]
    assert asked[0][0]["role"] == "system"


def test_help(checkpoints: Pair) -> None:
    """It is a command, and names the others."""
    found = run("chat", *model(checkpoints), typed="/help\n")
    assert (
        "/reset" in found.stderr and "Ctrl-C" in found.stderr and "no command" not in found.stderr
    )


def test_a_system_without_readline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: lines are typed without its editing."""
    monkeypatch.setitem(sys.modules, "readline", None)
    (terminal := Terminal("one\n two \n")).seek(0)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert list(chat._lines()) == ["one", "two"]


def test_a_pipe_that_gets_no_answer(checkpoints: Pair) -> None:
    """The exit code says so."""
    found = run("chat", *model(checkpoints), typed="word " * 5000)
    assert found.exit_code == 1 and "context" in found.stderr
    assert run("chat", *model(checkpoints), typed="/help\n").exit_code == 0

"""Prompts that the target makes up itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from foretoken.train.data import read_conversations


class Written:
    """What a model wrote, and why it ended; one that failed has no text."""

    def __init__(self, text: str, reason: str = "stop", error: str | None = None) -> None:
        self._text, self.error, self.outputs = text, error, [self]
        self.finish_reason = reason

    @property
    def text(self) -> str:
        assert self.error is None
        return self._text


class Model:
    """Stands for an LLM: it writes what it is given to write, and notes what it was asked."""

    tokenizer: Any

    def __init__(self, *answers: Written) -> None:
        self.answers, self.tokenizer = answers, self
        self.asked: list[tuple[list[list[int]], list[Any]]] = []

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        return f"<s>system<e><s>user\n{messages[0]['content']}<e><s>assistant\n"

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())

    def generate(self, prompts: Any, params: Any) -> tuple[Written, ...]:
        self.asked.append((prompts, params))
        return self.answers


def test_whole_turns_are_kept_once(tmp_path: Path) -> None:
    """Not those that were cut, failed, are a word or two, or came before."""
    import asked

    model: Any = Model(
        Written(" How do bees find their way? "),
        Written("How do bees find their way?"),
        Written("An endless question that goes on", "length"),
        Written("Hello"),
        Written("", error="no room"),
        Written("Write a poem about two\u2028lines."),
    )
    found = list(asked.conversations(asked.written(model, 6, 3, tmp_path), 3, 0.0))
    turns = ["How do bees find their way?", "Write a poem about two\u2028lines."]
    assert found == [{"task": "asked", "turns": [turn]} for turn in turns]
    [(prompts, params)] = model.asked
    assert prompts == [list(b"<s>system<e><s>user\n")] * 6
    assert len({each.seed for each in params}) == 6
    assert all(each.temperature == 1 for each in params)


def test_a_second_turn_follows() -> None:
    import asked

    turns = (f"What is the number {i} good for?" for i in range(200))
    found = list(asked.conversations(turns, 0, 0.25))
    followed = [each["turns"] for each in found if len(each["turns"]) == 2]
    assert 30 < len(followed) < 70
    assert {turns[1] for turns in followed} <= set(asked.FOLLOWING)


def test_the_file_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the trainer, line for line, whatever a turn has in it."""
    import asked

    model = Model(Written("Write a poem about two\u2028lines."), Written("What is \x85 that here?"))
    monkeypatch.setattr(asked, "LLM", lambda *args, **options: model)
    out = tmp_path / "asked.jsonl"
    given = ["--target", "m.gguf", "--count", "2", "--followed", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["asked.py", *given])
    asked.main()
    rows = [json.loads(line) for line in out.read_text().split("\n")[:-1]]
    assert [row["turns"][0] for row in rows] == [each.text for each in model.answers]
    read = read_conversations(out)
    assert [each.messages[0]["content"] for each in read] == [row["turns"][0] for row in rows]
    assert all(len(each.later) == 1 for each in read)


class Killed(Model):
    """Writes a turn for each prompt, by its seed; the process is killed at its second call."""

    def generate(self, prompts: Any, params: Any) -> tuple[Written, ...]:
        self.asked.append((prompts, params))
        if len(self.asked) == 2:
            raise KeyboardInterrupt
        return tuple(Written(f"What is the number {each.seed} good for?") for each in params)


def test_killed_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written isn't written again, and the file is that of one that was never killed;
    other turns aren't mixed in."""
    import asked

    monkeypatch.setattr(asked, "BLOCK", 4)
    out, model = tmp_path / "asked.jsonl", Killed()
    given = ["asked.py", "--target", "m.gguf", "--count", "10", "--out", str(out)]
    monkeypatch.setattr(asked, "LLM", lambda *args, **options: model)
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(KeyboardInterrupt):
        asked.main()
    assert not out.exists()
    monkeypatch.setattr(sys, "argv", [*given, "--seed", "1"])
    with pytest.raises(SystemExit, match="delete it"):
        asked.main()
    monkeypatch.setattr(sys, "argv", given)
    asked.main()
    assert [len(prompts) for prompts, _ in model.asked] == [4, 4, 4, 2]
    assert [file.name for file in tmp_path.iterdir()] == ["asked.jsonl"]
    whole = out.read_text()
    asked.main()
    assert out.read_text() == whole and len(whole.splitlines()) == 10

"""Prompts out of any text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.recommender import texts


def asked(text: str) -> list[str]:
    """The turns, in the file's order."""
    found = texts.split(text, "here")
    return [prompt.turns[0] for prompt in sorted(found, key=lambda prompt: int(prompt.id))]


def test_plain_text() -> None:
    """Lines, or what empty lines divide."""
    assert asked("One.\nTwo.\n") == ["One.", "Two."]
    assert asked("One.\nMore.\n \nTwo.\n\n\n") == ["One.\nMore.", "Two."]
    assert asked("{a} brace\n[and] another") == ["{a} brace", "[and] another"]


@pytest.mark.parametrize(
    ("row", "turn", "system"),
    [
        ("Say hi.", "Say hi.", None),
        ({"turns": ["One", "Two"]}, "One", None),
        ({"prompt": "Hi", "other": "something longer"}, "Hi", None),
        ({"text": "A whole text."}, "A whole text.", None),
        ({"instruction": "Add", "input": "1 2", "output": "3"}, "Add\n\n1 2", None),
        (
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": "Hello"},
                ]
            },
            "Hi",
            "Be brief.",
        ),
        ({"conversations": [{"from": "human", "value": "Hi"}]}, "Hi", None),
        ({"data": ["Hi", "Hello", "More"]}, "Hi", None),
        ({"a": "the longest text", "fields": ["short"]}, "the longest text", None),
        ({"id": "x", "fields": {"deep": ["short", "the longest text"]}}, "the longest text", None),
    ],
)
def test_json_of_any_kind(row: Any, turn: str, system: str | None) -> None:
    """The known spellings, and of anything else the longest text."""
    [found] = texts.split(json.dumps(row), "here")
    assert (found.turns, found.system) == ((turn,), system)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n \n", "here holds no prompts"),
        ('{"a": 1}', "here, line 1 is .* holds no text"),
        ('{"prompt": "Hi"}\n{"prompt": ', "here, line 2: not JSON"),
        ('{"prompt": "H\n{"prompt": "Hi"}\n{"prompt": "Ho"}', "here, line 1: not JSON"),
        ('{"messages": [{"role": "assistant", "content": "Hi"}]}', "line 1 has no turn of a user"),
        ('{"data": ["Hi", "Ho"], "tools": [{"type": "function"}]}', "line 1 declares tools"),
    ],
)
def test_no_prompts(text: str, said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        texts.split(text, "here")


def test_long_files_are_sampled() -> None:
    """By the seed, so that a sorted file isn't read from one end only."""
    lines = "\n".join(f"Line {number}" for number in range(3 * texts.MOST))
    one, same, other = (texts.split(lines, "here", seed) for seed in (0, 0, 1))
    assert len(one) == texts.MOST and one == same and one != other
    assert max(int(prompt.id) for prompt in one) > 2 * texts.MOST


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ForetokenError, match="not text in UTF-8"):
        texts.read_texts(tmp_path / "bytes")
    with pytest.raises(ForetokenError, match="can't be read"):
        texts.read_texts(tmp_path / "none")
    for name in ("broken.jsonl", "broken.json"):  # whatever most lines are
        (tmp_path / name).write_text('{"prompt": "Hi"\nWhat is this?\n')
        with pytest.raises(ForetokenError, match=f"{name}, line 1: not JSON"):
            texts.read_texts(tmp_path / name)


def test_bundled_prompts() -> None:
    """One turn each, all tasks in turn."""
    found = texts.bundled()
    assert len({prompt.task for prompt in found[:7]}) == 7
    assert all(len(prompt.turns) == 1 for prompt in found)
    assert {prompt.max_tokens for prompt in texts.shortened(found, 9)} == {9}


def test_a_mark_before_the_first_text() -> None:
    """Which some editors write; the prompts are what they are without it."""
    for text in ('{"prompt": "Hi"}\n{"prompt": "Ho"}', "Hi\nHo"):
        found = {prompt.turns[0] for prompt in texts.split("\ufeff" + text, "here")}
        assert found == {"Hi", "Ho"}

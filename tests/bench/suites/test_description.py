"""Suites described in YAML: which fields are read, and what is wrong with a description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.bench.suites.suite import Prompt, find_suite
from suite_files import OWN, describe, write


def test_a_description_says_which_field_is_what(tmp_path: Path) -> None:
    """Template, id, reference, system prompt, stop strings and limit."""
    rows = [
        {"q": "Who {is} it?", "answers": {"text": ["Ann", "Anna"]}, "kind": "who"},
        {"q": "How many?", "answers": {"text": [3]}, "kind": "number"},
    ]
    write(tmp_path / "questions.jsonl", rows)
    path = describe(
        tmp_path / "mine.yaml",
        name="mine",
        source={"file": "questions.jsonl"},
        id="q-{line}",
        task="qa",
        category="kind",
        template="{{In a word}} {q} ({answers.text.0})",
        reference="answers.text",
        system="You know {kind}.",
        stop=["\n"],
        max_tokens=5,
    )
    assert find_suite(path).prompts == (
        Prompt(
            "q-1",
            "qa",
            ("{In a word} Who {is} it? (Ann)",),
            "who",
            (("Ann", "Anna"),),
            ("\n",),
            5,
            "You know who.",
        ),
        Prompt(
            "q-2",
            "qa",
            ("{In a word} How many? (3)",),
            "number",
            (("3",),),
            ("\n",),
            5,
            "You know number.",
        ),
    )


def test_messages_are_turns(tmp_path: Path) -> None:
    """The user's messages are the turns; another one may be the reference."""
    said = [
        {"role": r, "content": c} for r, c in [("user", "a"), ("assistant", "b"), ("user", "c")]
    ]
    write(tmp_path / "chats.jsonl", [{**OWN, "messages": said}])
    path = describe(
        tmp_path / "c.yaml",
        name="c",
        source={"file": "chats.jsonl"},
        turns="messages",
        reference="messages.1.content",
    )
    [prompt] = find_suite(path).prompts
    assert prompt.turns == ("a", "c") and prompt.reference == (("b",), ())


BAD_DESCRIPTIONS = [
    ({"templat": "x"}, r"Unknown key 'templat'\. Did you mean 'template'"),
    ({"source": {"fil": "x"}}, "Unknown key 'fil'. Did you mean 'file'"),
    ({"source": None}, "source must be given as keys"),
    ({"source": {}}, "either a file or a dataset"),
    ({"source": {"file": "x", "dataset": "y", "split": "z"}}, "either a file or a dataset"),
    ({"source": {"file": "x", "url": "https:x"}}, "url without a sha256"),
    ({"source": {"file": "x", "url": "ftp:x", "sha256": "0"}}, "starts with https:"),
    ({"source": {"file": "x", "split": "test"}}, "go with a dataset"),
    ({"source": {"dataset": "x"}}, "needs a split"),
    ({"name": 3}, "name is 3; it must be text"),
    ({"max_tokens": 0}, "max_tokens is 0; it must be a number of 1 or more"),
    ({"max_tokens": True}, "max_tokens is True"),
    ({"stop": "\n"}, "must be a list of texts"),
    ({"tasks": {"a": "b"}}, "each with a list of its categories"),
    ({"tasks": {"a": ["b"]}, "task": "a"}, "either task or tasks"),
    ({"template": "{x}", "turns": "x"}, "either template or turns"),
    ({"template": "def f(): {"}, "braces that hold no field"),
    ({"template": '{"a": 1}'}, "braces that hold no field"),
    ({"template": "{}"}, "braces that hold no field"),
]


@pytest.mark.parametrize(("keys", "message"), BAD_DESCRIPTIONS)
def test_a_bad_description_is_one_sentence(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    """It names the file and the key."""
    given = {"name": "mine", "source": {"file": "x.jsonl"}, **keys}
    with pytest.raises(ForetokenError, match=r"mine\.yaml: .*" + message):
        find_suite(describe(tmp_path / "mine.yaml", **given))


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "is not YAML: .*line 1"), ("- a", "must be given as keys"), ("{}", "needs a name")],
)
def test_what_is_no_description(tmp_path: Path, text: str, message: str) -> None:
    """Text that is not YAML, not keys, without a name, or not there."""
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ForetokenError, match=message):
        find_suite(tmp_path / "x.yaml")
    with pytest.raises(ForetokenError, match=r"y\.yaml can't be read"):
        find_suite(tmp_path / "y.yaml")


def test_fields_that_are_not_there(tmp_path: Path) -> None:
    """In a row, in all rows, of another type; and a file that is missing."""
    write(tmp_path / "x.jsonl", [{**OWN, "answer": "Ann"}, {**OWN, "id": "b"}])
    given: dict[str, Any] = {"name": "mine", "source": {"file": "x.jsonl"}}
    with pytest.raises(ForetokenError, match=r"x\.jsonl, line 1: there is no 'question'"):
        find_suite(describe(tmp_path / "a.yaml", **given, template="{question}"))
    assert find_suite(describe(tmp_path / "some.yaml", **given, reference="answer")).prompts
    with pytest.raises(ForetokenError, match=r"No row of .*x\.jsonl has a 'answr'"):
        find_suite(describe(tmp_path / "b.yaml", **given, reference="answr"))
    with pytest.raises(ForetokenError, match=r"line 1: turns is \['Who\?'\]; it must be text"):
        find_suite(describe(tmp_path / "c.yaml", **given, template="{turns}"))
    given["source"] = {"file": "nowhere.jsonl"}
    with pytest.raises(ForetokenError, match=r"There is no file .*nowhere\.jsonl"):
        find_suite(describe(tmp_path / "d.yaml", **given))

"""`foretoken datastore`: build, add, and files that can't be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from typer.testing import CliRunner

from foretoken.cli import datastore
from foretoken.cli.commands import app
from foretoken.lookup.datastore import ORDERED, Datastore
from foretoken.testing import ByteTokenizer

ids = st.sampled_from([1, 255, 256])  # in the other order of bytes they'd stand in another order


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def datastore_tokenizer(checkpoints: tuple[Path, Path]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoints[0])


def test_command_line(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Text, lines of JSON and conversations; added to later; found again."""
    tokenizer = datastore_tokenizer(checkpoints)
    text, lines, store = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "store"
    text.write_text("one two\nthree four\n")
    turns = [{"role": "user", "content": "five"}, {"role": "assistant", "content": "six"}]
    told = {"text": None, "messages": turns}
    lines.write_text(json.dumps({"text": "seven"}) + "\n\n" + json.dumps(told))
    common = ("--tokenizer", checkpoints[0], "--out", store)
    built = run("datastore", "build", text, *common)
    assert built.exit_code == 0 and "tokens" in built.stdout
    assert run("datastore", "add", lines, *common).exit_code == 0
    found = Datastore(store, {"vocab_size": len(tokenizer)})
    for words in ("two\nthree", "seven", "u: five\na: six\n"):
        ids = tokenizer(words, add_special_tokens=False)["input_ids"]
        assert found.longest(ids, len(ids), ORDERED) == len(ids)
    assert not found.longest(tokenizer("sevenu")["input_ids"], 6, 6)


def test_a_model_of_parts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Whose vocabulary is its text model's, as of Gemma 3 with images."""
    from transformers import Gemma3Config

    own, store, text = tmp_path / "own", tmp_path / "store", tmp_path / "a.txt"
    Gemma3Config(text_config={"vocab_size": 321}).save_pretrained(own)
    datastore_tokenizer(checkpoints).save_pretrained(own)
    text.write_text("one two")
    built = run("datastore", "build", text, "--tokenizer", own, "--out", store)
    assert built.exit_code == 0, built.output
    assert Datastore(store, {"vocab_size": 321}).tokens


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", "one two"), ("a.jsonl", '{"text": "one two"}')]
)
def test_a_mark_of_utf8(
    name: str, content: str, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """At a file's beginning it is no part of the text."""
    counts = []
    for mark in (b"", b"\xef\xbb\xbf"):
        (file := tmp_path / name).write_bytes(mark + content.encode())
        store = tmp_path / f"store{len(mark)}"
        built = run("datastore", "build", file, "--tokenizer", checkpoints[0], "--out", store)
        assert built.exit_code == 0, built.output
        counts.append(built.stdout.split("(")[1].split(" tokens")[0])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("command", ["build", "add"])
def test_help_has_an_example(command: str) -> None:
    assert "Example" in run("datastore", command, "--help").stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ('{"txt": 1}', "line 2"),
        ('{"text": null}', "line 2"),
        ('{"text": 5}', "line 2"),
        ('{"text": ["a"], "messages": []}', "line 2"),
        ("3", "line 2"),
        ('{"messages": [3]}', "line 2"),
        ('{"messages": [{"role": "user", "content": 3}]}', "line 2: The content of message 0"),
        ('{"text": "\\ud83d"}', "line 2"),
        ('{"messages": [{"role": "user", "content": "\\ud83d"}]}', "line 2"),
        (b"\xff", "not UTF-8"),
        (None, "There is no file"),
    ],
)
def test_bad_files(
    line: str | bytes | None, said: str, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """What is wrong with a file is said in one sentence, and no datastore is left."""
    file, store = tmp_path / "a.jsonl", tmp_path / "store"
    if line is not None:
        given = line.encode() if isinstance(line, str) else line
        file.write_bytes(b'{"text": "fine"}\n' + given)
    found = run("datastore", "build", file, "--tokenizer", checkpoints[0], "--out", store)
    assert found.exit_code == 1 and said in found.output and "Traceback" not in found.output
    assert not (store / "index.npz").exists()


def test_lines_are_numbered_through_all_blocks(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datastore, "_BLOCK", 10)
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n' * 5 + "{\n")
    built = run(
        "datastore", "build", file, "--tokenizer", checkpoints[0], "--out", tmp_path / "store"
    )
    assert built.exit_code == 1 and "a.jsonl, line 6, is no JSON object" in built.stderr


def test_a_conversation_is_stored_as_the_model_reads_it() -> None:
    """With no answer begun after it; by a tokenizer without a template, a line a turn."""
    turns = [{"role": "user", "content": "five"}, {"role": "assistant", "content": "six"}]
    stored = datastore._entry_text({"messages": turns}, ByteTokenizer())
    assert stored == "user: five\nassistant: six\n"
    assert datastore._entry_text({"messages": turns}, None) == "five\nsix"


def test_nothing_is_added_to_a_text(tmp_path: Path) -> None:
    """A token that begins a prompt stands in no text's middle, where drafts are looked up."""

    def tokenizer(texts: list[str], add_special_tokens: bool = True, **_: Any) -> Any:
        return {"input_ids": [[0] * add_special_tokens + [len(text)] for text in texts]}

    (tmp_path / "a.txt").write_text("four")
    assert list(datastore._documents(tmp_path / "a.txt", tokenizer, lambda: None)) == [[4]]

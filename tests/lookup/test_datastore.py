"""The datastore: what it finds is what reading all texts finds; what it can't trust it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from foretoken import ForetokenError
from foretoken.cli.commands import app
from foretoken.lookup.datastore import ORDERED, Datastore, add, build, suffix_array

Texts = list[list[int]]

ids = st.sampled_from([1, 255, 256])  # in the other order of bytes they'd stand in another order
texts = st.lists(st.lists(ids, max_size=12), min_size=1, max_size=6)
phrases = st.lists(ids, min_size=1, max_size=8)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 6))
def test_suffix_array_is_the_sorted_suffixes(tokens: list[int], doublings: int) -> None:
    """By as many tokens as were asked for; with enough of them, the whole suffixes."""
    ordered = 1 << doublings
    found = suffix_array(np.array(tokens), ordered).tolist()
    assert sorted(found) == list(range(len(tokens)))
    keys = [tokens[place : place + ordered] for place in found]
    assert keys == sorted(keys)


def naive(documents: Texts, phrase: list[int], length: int) -> Counter[tuple[int, ...]]:
    """What follows a phrase, read off every place of every text."""
    size = len(phrase)
    return Counter(
        tuple(text[at + size : at + size + length])
        for text in documents
        for at in range(len(text) - size + 1)
        if text[at : at + size] == phrase
    )


@given(texts, texts, phrases, st.sampled_from([300, 100_000]))
def test_lookups_are_those_of_naive_search(
    tmp_path_factory: pytest.TempPathFactory,
    first: Texts,
    second: Texts,
    phrase: list[int],
    vocab_size: int,
) -> None:
    """Over texts that came at once and later, in two bytes and in four."""
    folder, made_for = tmp_path_factory.mktemp("store"), {"vocab_size": vocab_size}
    documents = [[0], *first, *second, [1]]
    build(folder, made_for, [[0], *first], segment=20)
    add(folder, made_for, [*second, [1]], segment=20)
    store = Datastore(folder, made_for)
    assert store.tokens == sum(len(text) + 1 for text in documents if text)
    known = max(
        (size for size in range(1, len(phrase) + 1) if naive(documents, phrase[-size:], 0)),
        default=0,
    )
    for shortest in (1, 3):
        assert store.longest(phrase, shortest, 16) == (known if known >= shortest else 0)
    rows = store.continuations(phrase, 3, 1000).tolist()
    assert rows == sorted(rows)
    inside = [tuple(row[: row.index(vocab_size)] if vocab_size in row else row) for row in rows]
    assert Counter(inside) == naive(documents, phrase, 3)


def test_matches_are_bounded_and_spread(tmp_path: Path) -> None:
    """Of too many places a tenth is read, and what follows keeps its shares over all segments."""
    build(tmp_path, {"vocab_size": 9}, [[1, 2]] * 600 + [[1, 3]] * 300 + [[1, 4]] * 100, segment=99)
    rows = Datastore(tmp_path, {"vocab_size": 9}).continuations([1], 1, 100)
    counts = Counter(rows[:, 0].tolist())
    assert counts.total() == 100
    assert all(abs(counts[token] - share) <= 5 for token, share in ((2, 60), (3, 30), (4, 10)))


def test_long_texts_and_phrases(tmp_path: Path) -> None:
    """A text longer than a segment is cut; a phrase longer than what is sorted is shortened."""
    build(tmp_path, {"vocab_size": 50}, [list(range(50)) * 4], segment=150)
    store = Datastore(tmp_path, {"vocab_size": 50})
    assert store.tokens == 202
    assert store.longest(list(range(50)) * 2, 1, 1000) == ORDERED


def test_old_segments_are_left_alone(tmp_path: Path) -> None:
    """Adding writes new files, and the index over the old one."""
    build(tmp_path, {"vocab_size": 5}, [[1, 2, 3]])
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.npy")}
    add(tmp_path, {"vocab_size": 5}, [[3, 2, 1]])
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("*.npy")}
    assert before.items() < after.items() and len(after) == 2 * len(before) == 4


def test_refusals(tmp_path: Path) -> None:
    """One sentence for a folder that holds nothing, something else, or damaged files."""
    made_for: dict[str, Any] = {"vocab_size": 5, "tokenizer": "a"}
    store = tmp_path / "store"
    with pytest.raises(ForetokenError, match="can't be read as a datastore"):
        Datastore(store, made_for)
    with pytest.raises(ForetokenError, match="from 1 to 5 and the vocabulary 5"):
        build(store, made_for, [[1, 5]])
    with pytest.raises(ForetokenError, match="no text"):
        build(store, made_for, [[]])
    build(store, made_for, [[1, 2, 3]])
    with pytest.raises(ForetokenError, match="holds a datastore already"):
        build(store, made_for, [[1]])
    with pytest.raises(ForetokenError, match="made for vocab_size 5 and this target has 6"):
        Datastore(store, {"vocab_size": 6})
    with pytest.raises(ForetokenError, match="made for tokenizer a and this target has b"):
        add(store, {"vocab_size": 5, "tokenizer": "b"}, [[1]])
    with pytest.raises(ForetokenError, match="can't be written"):
        build(store / "index.npz" / "x", made_for, [[1]])
    for name in ("index.npz", "0.tokens.npy", "0.suffixes.npy"):
        file = store / name
        whole = file.read_bytes()
        changed = whole[:-1] + bytes([whole[-1] ^ 1]) if name != "index.npz" else b"text"
        for damaged in (whole[:-1], whole[:20], b"", changed):
            file.write_bytes(damaged)
            with pytest.raises(ForetokenError, match="damaged"):
                Datastore(store, made_for)
        file.write_bytes(whole)
    np.save(store / "0.tokens.npy", np.array([1, 2, 3, 5], np.uint16))  # bytes in another order
    with pytest.raises(ForetokenError, match="damaged"):
        Datastore(store, made_for)
    (store / "0.tokens.npy").unlink()
    with pytest.raises(ForetokenError, match="missing or damaged"):
        Datastore(store, made_for)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_command_line(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Text, lines of JSON and conversations; added to later; found again."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoints[0])
    text, lines, store = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "store"
    text.write_text("one two\nthree four\n")
    turns = [{"role": "user", "content": "five"}, {"role": "assistant", "content": "six"}]
    lines.write_text(json.dumps({"text": "seven"}) + "\n\n" + json.dumps({"messages": turns}))
    common = ("--tokenizer", checkpoints[0], "--out", store)
    built = run("datastore", "build", text, *common)
    assert built.exit_code == 0 and "tokens" in built.stdout
    assert run("datastore", "add", lines, *common).exit_code == 0
    found = Datastore(store, {"vocab_size": len(tokenizer)})
    for words in ("two\nthree", "seven", "u: five\na: six\n"):
        ids = tokenizer(words, add_special_tokens=False)["input_ids"]
        assert found.longest(ids, len(ids), ORDERED) == len(ids)
    assert not found.longest(tokenizer("sevenu")["input_ids"], 6, 6)


@pytest.mark.parametrize("command", ["build", "add"])
def test_help_has_an_example(command: str) -> None:
    assert "Example" in run("datastore", command, "--help").stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2"),
        ('{"txt": 1}', "line 2"),
        ("3", "line 2"),
        ('{"messages": [3]}', "line 2"),
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

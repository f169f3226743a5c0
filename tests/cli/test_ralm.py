"""`foretoken ralm`: the text of plain retrieval, and how guesses and drafts went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import Pair, model, one_sentence, run, sps


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three documents; one of them has two lines."""
    path = tmp_path / "notes.txt"
    path.write_text("The cat sat.\n\n  A dog,\na cat \n \n\nRain in Spain.\n", encoding="utf-8")
    return path


def test_ralm(checkpoints: Pair, corpus: Path) -> None:
    """The text on standard output, the same with and without guesses and drafts."""
    command = ("ralm", "the cat in Spain", "--corpus", corpus, *model(checkpoints))
    plain = run(*command, "--plain")
    found = run(*command, *sps(checkpoints), "--speculation-stride", 2, "--asynchronous")
    assert plain.exit_code == found.exit_code == 0, found.output
    assert plain.stdout == found.stdout and plain.stdout.strip()
    assert plain.stderr.startswith("[autoregressive] 12 tokens · ")
    assert "guesses" not in plain.stderr
    assert plain.stderr.endswith(" · 3 retrievals for 3 pieces\n")
    assert found.stderr.startswith("[sps] 12 tokens · ") and "guesses right" in found.stderr
    assert "mean acceptance length" in found.stderr and found.stderr.count("\n") == 1


def test_ralm_json(checkpoints: Pair, corpus: Path) -> None:
    found = run(
        *("ralm", "rain", "--corpus", corpus, "--corpus", corpus, *model(checkpoints), "--json"),
        *("--retrieve-every", 3, "--max-document-tokens", 20),
    )
    data = json.loads(found.stdout)
    assert data["documents"][0] == 2 and len(data["documents"]) == 4
    assert len(data["token_ids"]) == 12 and data["stats"]["decoding"]["tokens"] >= 12


def test_what_is_refused(checkpoints: Pair, tmp_path: Path) -> None:
    """No file, no text, no document."""
    binary, empty = tmp_path / "a.bin", tmp_path / "empty.txt"
    binary.write_bytes(b"\xff\xfe")
    empty.write_text(" \n\n")
    for path in (tmp_path / "none.txt", binary, empty):
        one_sentence(run("ralm", "a", "--corpus", path, *model(checkpoints)))

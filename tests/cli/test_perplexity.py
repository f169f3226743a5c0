"""`foretoken perplexity`: formats of a model on a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Kind
from typer.testing import CliRunner

import gguf_files
from foretoken.cli.commands import app
from foretoken.models.native.backends import blocks

TEXT = "the cat in the hat " * 12


def run(*arguments: str, given: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["perplexity", *arguments], input=given)
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(gguf_files.written(tmp_path / "a.gguf", "llama", Kind.Q8_0))


@pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")
def test_a_file_and_another_format(model: str, tmp_path: Path) -> None:
    """As JSON and as a table; by default a GGUF file's own blocks; a file or standard input."""
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    both = ["--backend", "blocks", "--backend", "q4", "--window", "40"]
    code, said = run("--model", model, "--text", str(file), *both, "--json")
    assert not code
    own, four = json.loads(said)
    assert (own["backend"], four["backend"]) == ("blocks", "q4")
    assert own["weights"] == own["numbers"] == four["numbers"] != four["weights"]
    for row in own, four:
        assert row["arithmetic"] == row["executed"] / row["weights"] != 1
        assert row["low"] <= row["arithmetic"] <= row["high"]
    code, said = run("--model", model, "--text", "-", "--window", "40", given=TEXT)
    assert not code and "q4" not in said
    assert f"Over {own['tokens']} tokens from the text's beginning." in said
    assert f"{own['executed']:.3f} {own['arithmetic']:.4f} ({own['low']:.4f} to" in said
    code, said = run("--model", model, "--text", "-", "--tokens", "20", "--json", given=TEXT)
    [row] = json.loads(said)
    assert not code and row["low"] is row["high"] is None and row["tokens"] in (19, 20)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--text", "TEXT", "--tokens", "9000"], "tokens, and 9000 are wanted"),
        (["--text", "TEXT", "--backend", "half"], "'half' is none whose weights are compared"),
        (["--text", "nowhere.txt"], "nowhere.txt can't be read"),
        (["--text", "MODEL"], "is no text in UTF-8"),
        (["--text", "TEXT", "--model", "mini", "--backend", "blocks"], "mini is no GGUF file"),
    ],
)
def test_refusals(arguments: list[str], told: str, model: str, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    places = {"TEXT": str(file), "MODEL": model}
    code, said = run("--model", model, *(places.get(word, word) for word in arguments))
    assert code and told in said


def test_a_folder_has_every_format() -> None:
    from foretoken.bench.measure import perplexity

    assert perplexity.default_backends("mini") == ["q4", "q5", "q6", "q8"]

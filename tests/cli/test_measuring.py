"""Placing a target for a measurement: its name, its shape, its draft models."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import synthetic
from command_line import Terminal, harmless
from foretoken import ForetokenError
from foretoken.bench.report.samples import read_answers
from foretoken.cli.measuring import AS_IT_IS, check_shapes, placed, show, target_name


def test_a_shape_that_there_is_not() -> None:
    """It is refused before anything is measured; "none" is a shape too."""
    check_shapes([AS_IT_IS, "135m"])
    with pytest.raises(ForetokenError, match="135m"):
        check_shapes(["135n"])


def test_results_name_the_shape() -> None:
    """A target as it is has its folder's name; an inflated one its shape's too."""
    assert (target_name("mini", AS_IT_IS), target_name("mini", "135m")) == ("mini", "mini-135m")


def test_a_target_as_it_is_stays_where_it_is() -> None:
    """Nothing is written, and the methods are copies that the caller may change."""
    configs = {"a": {"method": "sps", "model": "mini-draft"}}
    with placed("mini", configs, AS_IT_IS) as (place, methods):
        assert place == "mini" and methods == configs and methods["a"] is not configs["a"]


def test_inflated_models_last_as_long_as_the_block(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Target and draft model are written in the shape's proportion and gone afterwards."""
    written = []

    def write(source: Path, out: Path, shape: str, like: Path | None) -> Path:
        written.append((source.name, shape, None if like is None else like.name))
        out.mkdir()
        return out

    monkeypatch.setattr("foretoken.cli.zoo.write", write)
    target, draft = map(str, checkpoints)
    with placed(target, {"sps": {"method": "sps", "model": draft}}, "135m") as (place, methods):
        kept = [Path(place), Path(str(methods["sps"]["model"]))]
        assert all(path.is_dir() for path in kept)
    assert written == [("target", "135m", None), ("draft", "135m", "target")]
    assert not any(path.exists() for path in kept)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_results_hold_text_and_no_markup(
    stream: type[io.StringIO], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts, answers and reasons; a terminal obeys none of them."""
    harmful = "[/] [red]x \x1b]0;title\x07\x9b\u202e"
    results = synthetic.results()
    results["not_run"] = {"[/b]": harmful}
    folder = synthetic.write(tmp_path, results)
    answers = read_answers(folder / "samples.jsonl")
    for answer in answers:
        answer.prompt, answer.pieces = harmful, [harmful] * len(answer.pieces)
    lines = "".join(answer.line() + "\n" for answer in answers)
    (folder / "samples.jsonl").write_text(lines, encoding="utf-8")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stdout", out := stream())
    show(folder, [results])
    shown = out.getvalue()
    assert "Without [/b]: [/] [red]x " in shown and "> [/] [red]x " in shown
    assert harmless(shown) == (stream is Terminal)


def test_what_was_not_run_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all methods of a target together; targets that lack the same share it."""
    lacking: dict[str, dict[str, str]] = {
        "a": {"sps": "no model", "rest": "no store"},
        "b": {"rest": "none", "pld": "none"},
        "c": {"rest": "none"},
    }
    parts = []
    for name, reasons in lacking.items():
        part = synthetic.results()
        part["target"]["name"], part["not_run"] = name, reasons
        parts.append(part)
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    folder = synthetic.write(tmp_path, parts[0])
    show(folder, parts)
    assert [line for line in out.getvalue().splitlines() if line.startswith("Without")] == [
        "Without 2 methods on a: sps, rest; the report says why.",
        "Without 2 methods on b: rest, pld; the report says why.",
        "Without rest on c: none",
    ]
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    show(folder, [parts[0], parts[0]])
    assert out.getvalue().count("Without 2 methods: sps, rest;") == 1

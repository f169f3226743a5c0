"""Results in a terminal: the report's numbers, in as many columns as fit."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import synthetic
from foretoken.bench.report import terminal, wording
from foretoken.bench.report.folder import read_folder
from foretoken.bench.report.layout import NONE
from report_pages import printed


def test_the_terminal_says_the_same(folder: Path) -> None:
    """Every number of a run is printed."""
    results = read_folder(folder)
    text = printed(results)
    for run in results[0]["runs"]:
        numbers = [cell for cell in wording.cells(run) if cell != NONE]
        assert any(all(n in line for n in numbers) for line in text.splitlines()), run["method"]
    assert "Speedup on each target" in text and "What the text is worth" in text


def test_a_narrow_terminal_goes_without_some_columns(folder: Path) -> None:
    """Nothing is cut: at 80 columns the split of a step's time is left out."""
    results = synthetic.results(temperatures=(0.0,), sizes=(1,))
    narrow, wide = printed([results], 80), printed([results], 120)
    assert "verify" in wide and "verify" not in narrow
    assert "…" not in narrow and "yes, but 1 near tie" in narrow


def test_methods_are_spelled_out_once_and_the_fullest_target_leads() -> None:
    """Under the tables, whatever the order of the targets' files."""
    part = synthetic.results(temperatures=(0.0,), sizes=(1,))
    small = synthetic.results("bfloat16", temperatures=(0.0,), sizes=(1,))
    small["runs"] = small["runs"][:2]
    text = printed([small, part])
    assert text.count("pld: prompt lookup") == 1
    assert text.index("float32") < text.index("bfloat16")


@pytest.mark.parametrize(
    ("settings", "says", "text"),
    [
        ({}, "what stands between ⟦ and ⟧ was drafted", "so⟦ it is⟧ now"),
        ({"force_terminal": True, "no_color": True}, "what stands between ⟦ and ⟧ was", "⟦ it is⟧"),
        ({"force_terminal": True, "color_system": "standard"}, "green", "\x1b[1;32m it\x1b[0m"),
    ],
)
def test_drafts_are_marked_in_the_way_that_is_said(
    settings: dict[str, Any], says: str, text: str
) -> None:
    """Green where colours are seen, else in brackets."""
    pieces, accepted = ["so", " it", " is", " now"], [False, True, True, False]
    answer = synthetic.answer("pld", "chat", pieces=pieces, accepted=accepted)
    results = synthetic.results(temperatures=(0.0,), sizes=(1,))
    console = Console(width=200, file=io.StringIO(), **settings)
    with console.capture() as capture:
        terminal.show(console, [results], answer)
    shown = capture.get()
    assert says in shown and text in shown


def test_a_long_prompt_and_a_single_target() -> None:
    """Of the prompt the beginning; no table of targets side by side."""
    results = synthetic.results(temperatures=(0.0,), sizes=(1,))
    console = Console(width=400, file=io.StringIO())
    with console.capture() as capture:
        terminal.show(console, [results], synthetic.answer("pld", "chat", prompt="ab" * 200))
    assert f"> {'ab' * 150}…\n" in capture.get()
    assert "Speedup on each target" not in capture.get()

"""What a demo prints, in terminals of two widths, light and dark.

The pictures lie in build/screenshots afterwards.
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI

import synthetic
from browsing import SCREENSHOTS
from foretoken.bench.report import terminal, wording
from foretoken.cli import race

SCHEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": MONOKAI}


def screen(width: int) -> Console:
    """A terminal with colours that keeps what is printed."""
    return Console(
        file=io.StringIO(), width=width, record=True, force_terminal=True, color_system="truecolor"
    )


def keep_pictures(console: Console, name: str) -> list[str]:
    """Of both schemes; the printed lines, without trailing blanks."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for scheme, theme in SCHEMES.items():
        path = SCREENSHOTS / f"{name}-{console.width}-{scheme}.svg"
        console.save_svg(str(path), title="foretoken demo", theme=theme, clear=False)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize("width", [60, 120])
def test_the_race(width: int) -> None:
    """Both names whole, the end of both answers, and no line that is too long."""
    pieces = ["The", " house", " is", " old", " and", " the", " door", " of", " it", " is", " red"]
    moments = [0.01 * at for at in range(len(pieces))]
    accepted = [at % 3 > 0 for at in range(len(pieces))]
    plain = wording.spelled("autoregressive")
    racers = [
        race.Written(plain, pieces, [False] * len(pieces), moments),
        race.Written(wording.spelled("pld"), pieces, accepted, [at / 2 for at in moments]),
    ]
    console = screen(width)
    console.print(race.picture(racers, 1.0, terminal.in_colour(console)))
    lines = keep_pictures(console, "demo-race")
    assert max(map(len, lines)) <= width
    whole = "\n".join(lines)
    assert plain in whole and wording.spelled("pld") in whole
    assert whole.count("– done") >= 2 and whole.count("red") >= 2


@pytest.mark.parametrize("width", [60, 120])
def test_the_table(width: int) -> None:
    """Each method's speed and gain are there, nothing is cut, and drafts are green."""
    results = synthetic.results(temperatures=(0.0, 1.0), sizes=(1,))
    exact = ("autoregressive", "token_recycling", "lookahead")  # as all methods of a demo are
    results["runs"] = [run for run in results["runs"] if run["method"] in exact]
    pieces, accepted = ["so", " it", " is", " now"], [False, True, True, False]
    answer = synthetic.answer("pld", "chat", pieces=pieces, accepted=accepted)
    console = screen(width)
    terminal.show(console, [results], answer)
    lines = keep_pictures(console, "demo-table")
    assert max(map(len, lines)) <= width and "…" not in "".join(lines)
    for run in results["runs"]:
        assert any(run["method"] in line for line in lines), run["method"]
    assert any("so it is now" in line for line in lines)

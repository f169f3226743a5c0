"""report.md and report.html, made from the files of a measurement and from nothing else.

The page is one file without a request to anywhere: its style and charts are written into it, and
its switches are plain form controls that the style reacts to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from foretoken.bench.record import Answer, Results, read_results
from foretoken.bench.report import charts, rows, tables
from foretoken.bench.report.layout import Table
from foretoken.bench.report.reference import published
from foretoken.bench.report.samples import SHOWN_FAILURES, SHOWN_TOKENS, Shown, each_answer, shown
from foretoken.errors import ForetokenError
from foretoken.files import write_file
from foretoken.methods import METHODS, Method


def read_folder(folder: Path) -> list[Results]:
    """The measurements in a folder. Raises `ForetokenError` where there is none."""
    first = folder / "results.json"
    if not first.is_file():
        raise ForetokenError(f"{folder} holds no results.json; measure something into it first.")
    return [read_results(path) for path in (first, *sorted(folder.glob("results-*.json")))]


def write_report(folder: Path, *, reference: bool = False) -> list[Path]:
    """Read results*.json and samples.jsonl in `folder`; write report.md and report.html there.

    reference: also show what others published of the same methods.
    """
    results = read_folder(folder)
    found = shown(results, each_answer(folder / "samples.jsonl"))
    theirs = published(results) if reference else None
    write_file(folder / "report.md", _markdown(results, found, theirs))
    write_file(folder / "report.html", _html(results, found, theirs))
    return [folder / "report.md", folder / "report.html"]


def methods(results: Seq[Results]) -> list[Method]:
    """The rows of the method table that occur."""
    return [METHODS[name] for name in rows.order(results) if name in METHODS]


def longest_step(results: Results) -> float:
    """Milliseconds at the right end of the bars of a step."""
    return max((sum(run["ms_per_step"].values()) for run in results["runs"]), default=1.0) or 1.0


def cell(text: object) -> str:
    """Text that stays inside a cell of a Markdown table, and stays text."""
    line = re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(str(text).split()))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bracketed(answer: Answer) -> str:
    """The answer's first tokens; what was drafted and accepted stands between ⟦ and ⟧.

    Of a server that doesn't tell its tokens, the text's beginning.
    """
    if not answer.pieces:
        return answer.text[: 4 * SHOWN_TOKENS]
    text = ""
    for piece, accepted in list(zip(answer.pieces, answer.accepted, strict=True))[:SHOWN_TOKENS]:
        text += f"⟦{piece}⟧" if accepted else piece
    return text.replace("⟧⟦", "") + " …" * (len(answer.pieces) > SHOWN_TOKENS)


def fence(*texts: str) -> str:
    """A Markdown fence longer than any run of backticks in the texts."""
    size = 3
    while any("`" * size in text for text in texts):
        size += 1
    return "`" * size


def _environment() -> Environment:
    env = Environment(
        loader=PackageLoader("foretoken.bench.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    for tool in (
        rows.title,
        rows.short_title,
        rows.coverage,
        rows.headline,
        rows.number,
        rows.times,
        rows.percent,
        rows.interval,
        rows.best,
        rows.settings,
        rows.singly,
        rows.at,
        rows.drafting,
        rows.tasks,
        rows.when,
        rows.count,
        rows.order,
        charts.share,
        longest_step,
        cell,
        bracketed,
        fence,
    ):
        env.globals[tool.__name__] = tool
    env.globals |= {
        "BASELINE": rows.BASELINE,
        "SHOWN_TOKENS": SHOWN_TOKENS,
        "SHOWN_FAILURES": SHOWN_FAILURES,
        "tables": tables,
        "charts": charts,
    }
    return env


def _html(results: Seq[Results], shown: Seq[Shown], published: Table | None) -> str:
    env = _environment()
    style = Markup(env.get_template("report.css").render())
    looks, labels = charts.looks(rows.order(results)), rows.labels(results)
    page: str = env.get_template("report.html.j2").render(
        results=results,
        shown=shown,
        published=published,
        style=style,
        looks=looks,
        labels=labels,
        methods=methods(results),
    )
    return page


def _markdown(results: Seq[Results], shown: Seq[Shown], published: Table | None) -> str:
    env = _environment()
    env.autoescape = False
    page: str = env.get_template("report.md.j2").render(
        results=results, shown=shown, published=published, methods=methods(results)
    )
    return page

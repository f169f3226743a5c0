"""report.md and report.html, made from the files of a measurement and from nothing else.

The page is one file that requests no other: its style and charts are written into it, and
its switches are plain form controls that the style reacts to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from foretoken.bench.record import BASELINE, Answer, Results
from foretoken.bench.report import charts, selection, tables, wording
from foretoken.bench.report.folder import read_folder
from foretoken.bench.report.layout import Table
from foretoken.bench.report.reference import published
from foretoken.bench.report.samples import (
    SHOWN_FAILURES,
    SHOWN_TOKENS,
    Sample,
    Shown,
    each_answer,
    shown,
)
from foretoken.files import write_file
from foretoken.methods import METHODS, Method


def write_report(folder: Path, *, reference: bool = False) -> list[Path]:
    """Read what was measured into `folder`, to the end or not; write report.md and report.html
    there. The target that tells most comes first.

    reference: also show what others published of the same methods.
    """
    return write_pages(folder, read_folder(folder), reference=reference)


def write_pages(folder: Path, results: Seq[Results], *, reference: bool = False) -> list[Path]:
    """Write the pages of `results`, which were read from `folder`; see `write_report`."""
    results = selection.telling_first(results)
    samples = shown(results, each_answer(folder / "samples.jsonl"))
    reference_table = published(results) if reference else None
    write_file(folder / "report.md", _markdown(results, samples, reference_table))
    write_file(folder / "report.html", _html(results, samples, reference_table))
    return [folder / "report.md", folder / "report.html"]


def methods(results: Seq[Results]) -> list[Method]:
    """The rows of the method table of the methods that were measured."""
    return [METHODS[name] for name in selection.method_order(results) if name in METHODS]


def told(results: Seq[Results], shown: Seq[Shown]) -> tuple[Results, list[Sample]] | None:
    """The first target of which there are answers to show, with these."""
    both = ((part, own.samples) for part, own in zip(results, shown, strict=True))
    return next(((part, samples) for part, samples in both if samples), None)


def writers(results: Seq[Results], samples: Seq[Sample]) -> list[str]:
    """The methods that wrote an answer of these, in the order of all charts."""
    names = {answer.method for sample in samples for answer in sample.answers}
    return [name for name in selection.method_order(results) if name in names]


def longest_step(results: Results) -> float:
    """Milliseconds at the right end of the bars of a step."""
    every = [run["ms_per_step"] for run in results["runs"]]
    return max((sum(ms.values()) for ms in every if ms["verify"]), default=1.0)


def cell(text: object) -> str:
    """Text escaped for a cell of a Markdown table."""
    line = re.sub(r"([\\`*|\[\]])", r"\\\1", " ".join(str(text).split()))
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def bracketed(answer: Answer) -> str:
    """The answer's first tokens; what was drafted and accepted stands between ⟦ and ⟧.

    For a server, which doesn't send its tokens, the beginning of the text.
    """
    if not answer.pieces:
        return answer.text[: 4 * SHOWN_TOKENS]
    pieces, accepted = answer.pieces[:SHOWN_TOKENS], answer.accepted[:SHOWN_TOKENS]
    more = " …" * (len(answer.pieces) > SHOWN_TOKENS)
    return wording.bracketed(pieces, accepted) + more


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
        wording.title,
        wording.short_title,
        wording.coverage,
        wording.headline,
        wording.unfinished,
        wording.machine,
        wording.spelled,
        wording.number,
        wording.times,
        wording.percent,
        wording.interval,
        selection.fastest,
        selection.winner,
        selection.settings,
        selection.smallest_batch,
        selection.runs_at,
        selection.drafting_runs,
        selection.tasks,
        wording.setting_text,
        wording.count,
        selection.method_order,
        charts.share,
        longest_step,
        writers,
        cell,
        bracketed,
        fence,
    ):
        env.globals[tool.__name__] = tool
    env.globals |= {
        "BASELINE": BASELINE,
        "SHOWN_TOKENS": SHOWN_TOKENS,
        "SHOWN_FAILURES": SHOWN_FAILURES,
        "tables": tables,
        "charts": charts,
    }
    return env


def _html(results: Seq[Results], shown: Seq[Shown], published: Table | None) -> str:
    env = _environment()
    style = Markup(env.get_template("report.css").render())
    looks, labels = charts.looks(selection.method_order(results)), wording.labels(results)
    page: str = env.get_template("report.html.j2").render(
        results=results,
        shown=shown,
        told=told(results, shown),
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
        results=results,
        shown=shown,
        told=told(results, shown),
        published=published,
        methods=methods(results),
    )
    return page

"""report.md and report.html, made from the files of a measurement and from nothing else.

The page is one file without a request to anywhere: its style and bars are written into it.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from foretoken.bench import rows
from foretoken.bench.record import Answer, Results, Run, read_results, write_text
from foretoken.errors import ForetokenError
from foretoken.methods import METHODS, Method


def write_report(folder: Path) -> list[Path]:
    """Read results*.json and samples.jsonl in `folder`; write report.md and report.html there."""
    results = [read_results(path) for path in _result_files(folder)]
    answers = read_answers(folder / "samples.jsonl")
    pages = {"report.md": _markdown(results), "report.html": _html(results, answers)}
    for name, text in pages.items():
        write_text(folder / name, text)
    return [folder / name for name in pages]


def _result_files(folder: Path) -> list[Path]:
    first = folder / "results.json"
    if not first.is_file():
        raise ForetokenError(f"{folder} holds no results.json; measure something into it first.")
    return [first, *sorted(folder.glob("results-*.json"))]


def read_answers(path: Path) -> list[Answer]:
    if not path.is_file():
        return []
    return [Answer.parse(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


@dataclass(frozen=True)
class Sample:
    """One prompt with what the drafting methods answered."""

    first: Answer
    answers: Seq[Answer]


def samples(results: Results, answers: Seq[Answer]) -> list[Sample]:
    """The first prompt of every task that is not left out (else the first), greedy ones first."""
    mine = [a for a in answers if a.target == results["target"]["name"] and a.turn == 0]
    left_out = set(results["suite"]["left_out"])
    found = []
    for task in dict.fromkeys(a.task for a in mine):
        ids = list(dict.fromkeys(a.id for a in mine if a.task == task))
        chosen = next((i for i in ids if i not in left_out), ids[0])
        drafted = [a for a in mine if a.id == chosen and a.method != rows.BASELINE]
        if drafted:
            drafted.sort(key=lambda a: a.temperature)
            found.append(Sample(drafted[0], drafted))
    return found


def example(results: Results, answers: Seq[Answer], method: str) -> Answer | None:
    """The answer to show in a terminal: this method's first greedy one of `samples`."""
    for sample in samples(results, answers):
        for answer in sample.answers:
            if answer.method == method and answer.temperature == 0 and len(answer.token_ids) > 4:
                return answer
    return None


def tasks(results: Results) -> list[str]:
    return list(dict.fromkeys(task for run in results["runs"] for task in run["by_task"]))


def temperatures(results: Results) -> list[float]:
    return list(dict.fromkeys(run["temperature"] for run in results["runs"]))


def drafting(results: Results, temperature: float | None = None) -> list[Run]:
    """All runs but the baseline's, at one temperature or at all."""
    return [
        run
        for run in results["runs"]
        if run["method"] != rows.BASELINE and temperature in (None, run["temperature"])
    ]


def methods(results: Seq[Results]) -> list[Method]:
    """The rows of the method table that occur."""
    names = dict.fromkeys(run["method"] for part in results for run in part["runs"])
    return [METHODS[name] for name in names if name in METHODS]


def scale(results: Results) -> float:
    """The right end of the speedup bars."""
    ends = [1.0]
    for run in results["runs"]:
        ends += [run["speedup"] or 0.0, *(run["speedup_ci95"] or [])]
    return max(ends) * 1.05


def longest_step(results: Results) -> float:
    """Milliseconds at the right end of the bars of a step."""
    return max((sum(run["ms_per_step"].values()) for run in results["runs"]), default=1.0) or 1.0


def _environment() -> Environment:
    loader = PackageLoader("foretoken.bench")
    env = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    for tool in (
        rows.title, rows.coverage, rows.headline, rows.rows, rows.number, rows.times, rows.percent,
        rows.interval, rows.best, rows.same, samples, tasks, temperatures, drafting, scale,
        longest_step,
    ):  # fmt: skip
        env.globals[tool.__name__] = tool
    env.globals |= {"COLUMNS": rows.COLUMNS, "BASELINE": rows.BASELINE}
    return env


def _html(results: Seq[Results], answers: Seq[Answer]) -> str:
    env = _environment()
    style = Markup(env.get_template("report.css").render())
    page: str = env.get_template("report.html.j2").render(
        results=results, answers=answers, style=style, methods=methods(results)
    )
    return page


def _markdown(results: Seq[Results]) -> str:
    env = _environment()
    env.autoescape = False
    page: str = env.get_template("report.md.j2").render(results=results, methods=methods(results))
    return page

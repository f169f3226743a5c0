"""What `foretoken bench` and `foretoken demo` share: placing a target and showing results."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.cli import output

if TYPE_CHECKING:
    from foretoken.bench.plan import Configs
    from foretoken.bench.record import Results

AS_IT_IS = "none"
"""The shape of a target that is not inflated."""


def check_shapes(shapes: list[str]) -> None:
    """Refuse unknown shapes before anything is measured."""
    from foretoken.errors import unknown
    from foretoken.zoo.shape import SHAPES

    for shape in shapes:
        if shape not in (*SHAPES, AS_IT_IS):
            raise unknown("shape", shape, [*SHAPES, AS_IT_IS])


def target_name(model: str, shape: str) -> str:
    """A target's name in results."""
    from foretoken.models import gguf
    from foretoken.models.load import find

    name = gguf.model_name(find(model))
    return name if shape == AS_IT_IS else f"{name}-{shape}"


@contextmanager
def placed(
    model: str, configs: Mapping[str, Mapping[str, Any]], shape: str
) -> Iterator[tuple[str | Path, Configs]]:
    """A target and its methods; inflated ones lie in a temporary folder.

    Draft models are inflated to their share of the shape.
    """
    from foretoken.bench.plan import draft_models, relocated
    from foretoken.cli.zoo import write
    from foretoken.models.load import folder_of

    if shape == AS_IT_IS:
        yield model, {label: dict(config) for label, config in configs.items()}
        return
    target = folder_of(model)
    with tempfile.TemporaryDirectory(prefix="foretoken-") as name:
        folder = Path(name)
        large = write(target, folder / "target", shape, None)
        drafts = {
            draft: write(folder_of(draft), folder / f"draft-{i}", shape, target)
            for i, draft in enumerate(draft_models(configs))
        }
        yield large, relocated(configs, drafts)


def show(out: Path, results: list[Results]) -> None:
    """Write the pages, print the tables and where the page is."""
    from foretoken.bench.report import selection, terminal, wording
    from foretoken.bench.report.page import write_report
    from foretoken.bench.report.samples import example, read_answers

    pages, results = write_report(out), selection.telling_first(results)
    answers = read_answers(out / "samples.jsonl")
    sample = next((s for m in _drawn(results[0]) if (s := example(results[0], answers, m))), None)
    console = output.console(width=100)
    terminal.show(console, results, sample)
    for part in results:
        console.print()
        console.print(wording.headline(part), soft_wrap=True)
    for line in _without(results):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(f"Report: {pages[-1]}")


def _without(results: list[Results]) -> list[str]:
    """A line on the methods that could not be run: one for all targets that lack the same."""
    targets: dict[tuple[str, ...], list[Results]] = {}
    for part in results:
        if names := tuple(part.get("not_run", {})):
            targets.setdefault(names, []).append(part)
    lines = []
    for names, parts in targets.items():
        on = ", ".join(dict.fromkeys(part["target"]["name"] for part in parts))
        where = f" on {on}" if len(parts) < len(results) else ""
        if len(names) == 1:
            lines.append(f"Without {names[0]}{where}: {parts[0]['not_run'][names[0]]}")
        else:
            listed = ", ".join(names)
            lines.append(f"Without {len(names)} methods{where}: {listed}; the report says why.")
    return lines


def _drawn(results: Results) -> list[str]:
    """The methods that draft, by mean acceptance length: an answer of the first is shown."""
    runs = [run for run in results["runs"] if run["mean_acceptance_length"]]
    runs.sort(key=lambda run: -(run["mean_acceptance_length"] or 0.0))
    return list(dict.fromkeys(run["method"] for run in runs if run["draft_acceptance_rate"]))

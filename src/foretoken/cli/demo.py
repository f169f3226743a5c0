"""`foretoken demo`: the bundled models decoding side by side, a table and a report.

Three minutes on two cores, in two parts: the models as they are, then inflated to the cost of a
larger shape. Each part is given its share of the time before anything is measured.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from foretoken.cli import options

if TYPE_CHECKING:
    from foretoken.bench.record import Answer, Results
    from foretoken.bench.runner import Plan
    from foretoken.bench.suite import Suite

_FIRST_SHARE = 0.6
_LEAST_LEFT = 30.0  # seconds without which the inflated part is not begun
_INFLATED_TOKENS = 32


def demo(
    out: Annotated[
        Path, typer.Option("--out", help="The folder for results, samples and report.")
    ] = Path("foretoken-demo"),
    model: options.Model = "mini",
    draft_model: options.DraftModel = "mini-draft",
    num_speculative_tokens: options.NumSpeculativeTokens = 4,
    max_tokens: options.MaxTokens = 48,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most prompts of a task.")] = 10,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0, help="Time for measuring; fewer prompts if it is short."),
    ] = 150.0,
    shape: Annotated[
        str, typer.Option("--shape", help="Also inflate the models to this shape; 'none' does not.")
    ] = "135m",
    seed: options.Seed = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the measurements as a JSON list instead.")
    ] = False,
) -> None:
    """Decode the bundled prompts plainly, by prompt lookup and with a small model, and compare.

    Writes results.json, samples.jsonl, report.md and report.html.

    Example: [bold]foretoken demo --out my-demo --limit 4[/bold]
    """
    job = _Job(
        out, model, draft_model or model, num_speculative_tokens or 4, max_tokens, limit, shape,
        seed or 0, perf_counter() + seconds,
    )  # fmt: skip
    results = job.run()
    from foretoken.bench.report import write_report

    pages = write_report(out)
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        _show(out, results, pages)


@dataclass
class _Job:
    out: Path
    model: str
    draft_model: str
    tokens: int
    max_tokens: int
    limit: int
    shape: str
    seed: int
    end: float

    def run(self) -> list[Results]:
        """Measure both parts, write their results."""
        from foretoken import zoo
        from foretoken.bench.suite import load_suite
        from foretoken.zoo.shape import SHAPES

        if self.shape not in (*SHAPES, "none"):
            from foretoken.errors import unknown

            raise unknown("shape", self.shape, [*SHAPES, "none"])
        suite = load_suite(zoo.prompts_path(), "bundled prompts")
        self.out.mkdir(parents=True, exist_ok=True)
        for old in self.out.glob("results*.json"):
            old.unlink()
        with (self.out / "samples.jsonl").open("w", encoding="utf-8") as samples:
            first = self._part(suite, self._plain_plan(), self._left() * _FIRST_SHARE, samples)
            self._write(first, "results.json")
            if self.shape == "none" or self._left() < _LEAST_LEFT:
                return [first]
            with self._inflated_plan() as plan:
                second = self._part(suite, plan, self._left(), samples)
            self._write(second, f"results-{self.shape}.json")
        return [first, second]

    def _left(self) -> float:
        return self.end - perf_counter()

    def _methods(self, draft_model: str) -> dict[str, dict[str, object]]:
        return {
            "pld": {"method": "pld"},
            "sps": {
                "method": "sps", "model": draft_model, "num_speculative_tokens": self.tokens,
            },
        }  # fmt: skip

    def _plain_plan(self) -> Plan:
        from foretoken.bench.runner import Plan

        return Plan(
            model=self.model, name=Path(self.model).name, methods=self._methods(self.draft_model),
            max_tokens=self.max_tokens, seed=self.seed,
        )  # fmt: skip

    @contextmanager
    def _inflated_plan(self) -> Iterator[Plan]:
        """The pair at the cost of a larger one, in a folder that does not stay."""
        from foretoken.bench.runner import Plan
        from foretoken.cli.zoo import write
        from foretoken.models.load import find

        target, draft = find(self.model), find(self.draft_model)
        with tempfile.TemporaryDirectory(prefix="foretoken-") as folder:
            large = write(target, Path(folder) / "target", self.shape, None)
            small = write(draft, Path(folder) / "draft", self.shape, target)
            yield Plan(
                model=large, name=f"{target.name}-{self.shape}", inflated=self.shape,
                methods=self._methods(str(small)), seed=self.seed,
                max_tokens=min(self.max_tokens, _INFLATED_TOKENS),
            )  # fmt: skip

    def _part(self, suite: Suite, plan: Plan, budget: float, samples: TextIO) -> Results:
        """Load, warm up and measure as many prompts as the budget holds."""
        from foretoken.bench.runner import Runner, run_prompts
        from foretoken.progress import track

        began = perf_counter()
        prompts = suite.in_turn(self.limit)

        def keep(answer: Answer) -> None:
            samples.write(answer.line() + "\n")
            samples.flush()

        with track(f"Measuring {plan.name}", len(prompts), True) as advance:
            runner = Runner(plan)
            runner.warm_up(prompts[0])
            left = budget - (perf_counter() - began)
            answers = run_prompts(runner, prompts, keep=keep, advance=advance, budget=left)
        return runner.results(suite, answers)

    def _write(self, results: Results, name: str) -> None:
        from foretoken.bench.record import write_json

        write_json(self.out / name, results)


def _show(out: Path, results: list[Results], pages: list[Path]) -> None:
    from rich.console import Console

    from foretoken.bench import terminal
    from foretoken.bench.report import example, read_answers

    sample = example(results[0], read_answers(out / "samples.jsonl"), "sps")
    console = Console(width=100 if not sys.stdout.isatty() else None)
    terminal.show(console, results, sample)
    console.print()
    console.print(f"Report: {pages[-1]}", highlight=False)

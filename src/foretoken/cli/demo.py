"""`foretoken demo`: the bundled models decoding side by side, a table and a report.

`foretoken bench` on the bundled prompts with a time budget: three minutes on two cores, in two
parts, the models as they are and then inflated to the cost of a larger shape. Each part is given
its share of the time before anything is measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import measuring, options, output
from foretoken.errors import ForetokenError
from foretoken.files import held, read_json, write_json

if TYPE_CHECKING:
    from foretoken.bench.plan import Plan
    from foretoken.bench.record import Results

_FIRST_SHARE = 0.6
_LEAST_LEFT = 30.0  # seconds; with less the inflated part is left out
_INFLATED_TOKENS = 32
_PLAN = {"command": "demo"}
"""What tells the folder of a demo from one of a bench."""


@options.grouped
def demo(
    *,
    out: Annotated[
        Path, typer.Option("--out", help="The folder for results, samples and report.")
    ] = Path("foretoken-demo"),
    model: options.Model = "mini",
    draft_model: options.DraftModel = options.BUNDLED_DRAFTS["mini"],
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
    running: options.ModelOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the measurements as a JSON list instead.")
    ] = False,
) -> None:
    """Decode the bundled prompts plainly, by prompt lookup and with a small model, and compare.

    Writes results.json, samples.jsonl, report.md and report.html.

    Example: [bold]foretoken demo --out my-demo --limit 4[/bold]
    """
    now = perf_counter()
    running.check_no_gguf_file()
    running.check_no_draft_backend()
    if running.speculative_config is not None:
        raise ForetokenError(
            "foretoken demo always compares the same methods; measure yours by foretoken bench "
            "--speculative-config."
        )
    from foretoken.bench.plan import Plan

    measuring.check_shapes([shape])
    plan = Plan(
        model=model,
        name=model,
        methods=_methods(draft_model or model, num_speculative_tokens or 4),
        dtype=running.dtype,
        max_tokens=max_tokens,
        seed=seed or 0,
        max_model_len=running.max_model_len or Plan.max_model_len,
        kv_cache_memory=running.kv_cache_memory,
        device=running.device,
        backend=running.backend,
        trust_remote_code=running.trust_remote_code,
    )
    running.use_threads()
    end = now + seconds
    with held(out):
        _clear(out)
        results = [_part(out, plan, measuring.AS_IT_IS, limit, now + seconds * _FIRST_SHARE)]
        if shape != measuring.AS_IT_IS and end - perf_counter() >= _LEAST_LEFT:
            plan = replace(plan, max_tokens=min(max_tokens, _INFLATED_TOKENS))
            results.append(_part(out, plan, shape, limit, end))
    if as_json:
        from foretoken.bench.report.page import write_report

        write_report(out)
        output.write_json(results)
    else:
        measuring.show(out, results)


def _clear(out: Path) -> None:
    """Delete the files of an earlier demo, and note that the folder is one's.

    Raises `ForetokenError` where it holds such files and no demo wrote them.
    """
    plan = out / "plan.json"
    samples = out / "samples.jsonl"
    old = [*sorted(out.glob("results*.json")), *filter(Path.exists, [samples])]
    others = filter(Path.exists, (plan, out / "report.md", out / "report.html"))
    theirs = next(iter([*old, *others]), None)
    if theirs is not None and not (plan.is_file() and read_json(plan, "a run's plan") == _PLAN):
        raise ForetokenError(
            f"{theirs} wasn't written by a demo, and this one would replace it; give another --out."
        )
    for file in old:
        file.unlink()
    write_json(plan, _PLAN)


def _methods(draft_model: str, tokens: int) -> dict[str, dict[str, Any]]:
    """The methods that are compared with plain decoding."""
    small = {"method": "sps", "model": draft_model, "num_speculative_tokens": tokens}
    return {"pld": {"method": "pld"}, "sps": small}


def _part(out: Path, plan: Plan, shape: str, limit: int, until: float) -> Results:
    """Measure the target in one shape on as many of the prompts as the time allows."""
    from foretoken.bench.plan import select
    from foretoken.bench.run.resume import Samples
    from foretoken.bench.run.runner import Runner
    from foretoken.bench.run.session import measure
    from foretoken.bench.suites.suite import find_suite

    suite, model = find_suite("bundled"), str(plan.model)
    inflated = None if shape == measuring.AS_IT_IS else shape
    with measuring.placed(model, plan.methods, shape) as (place, methods):
        placed = replace(
            plan,
            model=place,
            name=measuring.target_name(model, shape),
            methods=methods,
            inflated=inflated,
        )
        prompts = select(suite, None, limit)
        results = measure(Runner(placed), suite, prompts, Samples(out), until=until)
    write_json(out / (f"results-{inflated}.json" if inflated else "results.json"), results)
    return results

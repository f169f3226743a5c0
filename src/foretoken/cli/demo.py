"""`foretoken demo`: a real model writes plainly and with drafts, a race, a table and a report.

`foretoken bench` on the bundled prompts with a time budget, with methods that need nothing but the
target: under three minutes on two cores. Where the real model can't be had, the bundled toy takes
its place, inflated to its cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import measuring, options, output, race
from foretoken.errors import ForetokenError
from foretoken.files import held, read_json, write_json

if TYPE_CHECKING:
    from foretoken.bench.plan import Plan
    from foretoken.bench.record import Answer, Results

REAL = "smollm2-135m-instruct"
_TOY, _ITS_SHAPE = "mini", "135m"
_RACE = 160  # tokens
_DRAFTED = 4  # tokens of a draft model's draft
_MARK = {"command": "demo"}
"""What tells the folder of a demo from one of a bench."""


@options.grouped
def demo(
    *,
    out: Annotated[
        Path, typer.Option("--out", help="The folder for results, samples and report.")
    ] = Path("foretoken-demo"),
    model: Annotated[
        str | None,
        options.in_panel(
            "Model",
            "--model",
            "-m",
            help="Checkpoint folder, GGUF file, hub id or bundled name  [default: SmolLM2-135M]",
        ),
    ] = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    max_tokens: options.MaxTokens = 64,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most prompts of a task.")] = 10,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0, help="Time for measuring; fewer prompts if it is short."),
    ] = 100.0,
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="Inflate the models to this shape; 'none' does not."),
    ] = None,
    seed: options.Seed = 0,
    running: options.ModelOptions,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the measurements as a JSON list instead.")
    ] = False,
) -> None:
    """Decode the bundled prompts plainly and with drafts, show a race of the two, and compare.

    Writes results.json, samples.jsonl, report.md and report.html.

    Example: [bold]foretoken demo --out my-demo --limit 4[/bold]
    """
    now = perf_counter()
    _check(running)
    measuring.check_shapes([shape or measuring.AS_IT_IS])
    target = _target() if model is None else _Target(model)
    draft = draft_model or target.draft_model
    if draft is None and num_speculative_tokens is not None:
        raise ForetokenError(
            "--num-speculative-tokens is of a draft model, and there is none; add --draft-model."
        )
    now = now if model is not None else perf_counter()  # without what was fetched
    methods = _methods(draft, num_speculative_tokens)
    plan = _plan(target.model, methods, running, max_tokens, seed or 0)
    running.use_threads()
    with held(out):
        _clear(out)
        if not as_json:
            output.write(
                "The same prompts are answered by plain decoding, one token a pass of the model, "
                "and with drafts that the model checks several at a time. The text stays the same."
            )
        results = _part(out, plan, shape or target.shape, limit, now + seconds, not as_json)
    if as_json:
        from foretoken.bench.report.page import write_report

        write_report(out)
        output.write_json([results])
    else:
        measuring.show(out, [results])


def _check(running: options.ModelOptions) -> None:
    """Raise `ForetokenError` for options of commands that measure what is asked for."""
    running.check_no_weights_memory()
    running.check_no_gguf_file()
    running.check_no_draft_backend()
    if running.speculative_config is not None:
        raise ForetokenError(
            "foretoken demo always compares the same methods; measure yours by foretoken bench "
            "--speculative-config."
        )


@dataclass(frozen=True)
class _Target:
    """What is shown: a model, its draft model, and the shape that it is inflated to."""

    model: str
    draft_model: str | None = None
    shape: str = measuring.AS_IT_IS


def _target() -> _Target:
    """The real model, fetched where it isn't there; the toy at its cost where it can't be had."""
    from foretoken.zoo.fetch import fetch

    try:
        return _Target(str(fetch(REAL)))
    except ForetokenError as error:
        output.note(
            f"{error} The bundled toy takes its place, inflated to the cost of 135 million "
            "parameters: its speeds are a model's of that size, its texts are not."
        )
        return _Target(_TOY, options.BUNDLED_DRAFTS[_TOY], _ITS_SHAPE)


def _clear(out: Path) -> None:
    """Delete the files of an earlier demo, and note that the folder is one's.

    Raises `ForetokenError` where it holds such files and no demo wrote them.
    """
    plan = out / "plan.json"
    samples = out / "samples.jsonl"
    old = [*sorted(out.glob("results*.json")), *filter(Path.exists, [samples])]
    others = filter(Path.exists, (plan, out / "report.md", out / "report.html"))
    theirs = next(iter([*old, *others]), None)
    if theirs is not None and not (plan.is_file() and read_json(plan, "a run's plan") == _MARK):
        raise ForetokenError(
            f"{theirs} wasn't written by a demo, and this one would replace it; give another --out."
        )
    for file in old:
        file.unlink()
    write_json(plan, _MARK)


def _methods(draft_model: str | None, tokens: int | None) -> dict[str, dict[str, Any]]:
    """The methods that are compared with plain decoding."""
    found: dict[str, dict[str, Any]] = {name: {"method": name} for name in ("pld", "suffix")}
    if draft_model is not None:
        length = _DRAFTED if tokens is None else tokens
        found["sps"] = {"method": "sps", "model": draft_model, "num_speculative_tokens": length}
    return found


def _plan(
    model: str,
    methods: dict[str, dict[str, Any]],
    running: options.ModelOptions,
    max_tokens: int,
    seed: int,
) -> Plan:
    from foretoken.bench.plan import Plan

    return Plan(
        model=model,
        name=model,
        methods=methods,
        dtype=running.dtype,
        max_tokens=max_tokens,
        seed=seed,
        max_model_len=running.max_model_len or Plan.max_model_len,
        kv_cache_memory=running.kv_cache_memory,
        device=running.device,
        backend=running.backend,
        trust_remote_code=running.trust_remote_code,
    )


def _part(out: Path, plan: Plan, shape: str, limit: int, until: float, racing: bool) -> Results:
    """Measure on as many of the prompts as the time allows, and show a race."""
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
        write_json(out / "results.json", results)
        if racing:
            _race(out, placed, results)
    return results


def _race(out: Path, plan: Plan, results: Results) -> None:
    """Plain decoding and the fastest method at the prompt where its gain is the middle one."""
    from foretoken import LLM, SamplingParams
    from foretoken.bench.record import BASELINE
    from foretoken.bench.report import selection, terminal, wording
    from foretoken.bench.report.samples import read_answers

    best = selection.fastest(results, selection.Setting(0.0, 1))
    answers = read_answers(out / "samples.jsonl")
    if best is None or (prompt := _middle(answers, best["method"])) is None:
        output.write(
            f"\nThere is no race to show: no answer of {plan.max_tokens} tokens was written both "
            "plainly and by the fastest method; give more --seconds or fewer --max-tokens."
        )
        return
    messages = [{"role": "user", "content": prompt}]
    params = SamplingParams(temperature=0, max_tokens=_RACE)
    racers = []
    for method in (BASELINE, best["method"]):
        config = plan.methods.get(method, {"method": method})
        with LLM(
            plan.model,
            speculative_config=dict(config),
            dtype=plan.dtype,
            device=plan.device,
            backend=plan.backend,
            max_model_len=plan.max_model_len,
            max_num_seqs=1,
            trust_remote_code=plan.trust_remote_code,
        ) as llm:
            name = wording.spelled(method)
            racers.append(race.written(llm, name, messages, params))
    times = race.slowed(racers)
    pace = "at its own speed" if times == 1 else f"{times} times slower than it was"
    console = output.console(width=100)
    output.write(
        "\nOne of the prompts, where the gain is the middle one. Each has written alone and is "
        f"shown {pace}; {terminal.mark(terminal.in_colour(console))} was drafted and accepted:\n"
    )
    output.write("> " + " ".join(prompt.split())[:300])
    race.show(console, racers)


def _middle(answers: list[Answer], method: str) -> str | None:
    """The prompt at which a method's gain is the middle one, of those answered to the full."""
    from foretoken.bench.record import BASELINE

    greedy = [a for a in answers if a.temperature == 0 and a.turn == 0 and not a.error]
    plain = {a.id: a for a in greedy if a.method == BASELINE and a.decoding}
    gains = {
        plain[a.id].decoding / a.decoding: a.prompt
        for a in greedy
        if a.method == method and a.id in plain and a.decoding and a.finish_reason == "length"
    }
    return gains[median_low(gains)] if gains else None

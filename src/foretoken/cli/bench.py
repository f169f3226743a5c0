"""`foretoken bench`: methods beside plain decoding on a suite of prompts, into a folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import measuring
from foretoken.cli.job import Job, make_job
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.bench.record import Results

_WHAT, _HOW, _WHERE = "What is measured", "How it is measured", "Where and by whom"
_NOT_FOR_SHARDS = {"out", "shard", "ray", "ray_address", "as_json"}


def _option(panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


def bench(
    context: typer.Context,
    out: Annotated[
        Path, _option(_WHERE, "--out", "-o", help="The folder for results; goes on with it.")
    ] = Path("foretoken-bench"),
    suite: Annotated[
        str, _option(_WHAT, "--suite", help="Its name, a file of prompts, or a description.")
    ] = "spec-bench",
    tasks: Annotated[
        str | None, _option(_WHAT, "--tasks", help="Only these tasks, by comma.")
    ] = None,
    limit: Annotated[
        int | None, _option(_WHAT, "--limit", min=1, help="Most prompts of a task.")
    ] = None,
    methods: Annotated[
        str, _option(_WHAT, "--methods", help="By comma; all is every one that can be built.")
    ] = "all",
    method_config: Annotated[
        str | None,
        _option(
            _WHAT,
            "--method-config",
            help='Your own, as JSON or a YAML file: {"label": {"method": "sps", …}}.',
        ),
    ] = None,
    model: Annotated[
        str, _option(_WHAT, "--model", "-m", help="Folders, hub ids or bundled names, by comma.")
    ] = "mini",
    draft_model: Annotated[
        str | None, _option(_WHAT, "--draft-model", help="One for all models, or one for each.")
    ] = None,
    num_speculative_tokens: Annotated[
        int | None, _option(_WHAT, "--num-speculative-tokens", help="Tokens drafted in a step.")
    ] = None,
    inflate: Annotated[
        str, _option(_WHAT, "--inflate", help="Shapes to blow the models' cost up to, by comma.")
    ] = measuring.AS_IT_IS,
    dtypes: Annotated[str, _option(_WHAT, "--dtypes", help="Precisions, by comma.")] = "auto",
    temperatures: Annotated[
        str, _option(_HOW, "--temperatures", help="By comma; 0 is greedy.")
    ] = "0,1",
    batch_sizes: Annotated[
        str, _option(_HOW, "--batch-sizes", help="Prompts served together, by comma.")
    ] = "1",
    max_tokens: Annotated[
        int, _option(_HOW, "--max-tokens", min=1, help="Most tokens of an answer.")
    ] = 1024,
    max_model_len: Annotated[
        int, _option(_HOW, "--max-model-len", min=1, help="Most of a model's context to use.")
    ] = 4096,
    repeats: Annotated[
        int, _option(_HOW, "--repeats", min=1, help="The median of so many counts.")
    ] = 1,
    seed: Annotated[int, _option(_HOW, "--seed", help="Of everything random.")] = 0,
    own_history: Annotated[
        bool, _option(_HOW, "--own-history", help="Each method continues its own answers.")
    ] = False,
    warm: Annotated[
        bool, _option(_HOW, "--warm", help="Drafters keep what they learn from prompt to prompt.")
    ] = False,
    shard: Annotated[
        str | None, _option(_WHERE, "--shard", help="i/n: only this part of the prompts.")
    ] = None,
    ray: Annotated[
        int | None, _option(_WHERE, "--ray", min=1, help="So many shards on a Ray cluster.")
    ] = None,
    ray_address: Annotated[
        str | None,
        _option(_WHERE, "--ray-address", help="Its head's host:port; else here."),
    ] = None,
    engine: Annotated[
        str, _option(_WHERE, "--engine", help="foretoken, or openai for a server like OpenAI's.")
    ] = "foretoken",
    base_url: Annotated[
        str | None, _option(_WHERE, "--base-url", help="The server, e.g. http://localhost:8000/v1.")
    ] = None,
    baseline_url: Annotated[
        str | None, _option(_WHERE, "--baseline-url", help="The same model without speculation.")
    ] = None,
    tokenizer: Annotated[
        str | None, _option(_WHERE, "--tokenizer", help="Of a server that doesn't count tokens.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the measurements as a JSON list instead.")
    ] = False,
) -> None:
    """Measure methods beside plain decoding, prompt by prompt, and write a report.

    Writes results.json, samples.jsonl, report.md and report.html. What was interrupted goes on
    with the same command.

    Example: [bold]foretoken bench --suite spec-bench --limit 5 --max-tokens 128[/bold]
    """
    try:
        job = make_job(context.params)
        results = _on_ray(job, context) if ray else job.run()
    except KeyboardInterrupt:
        print(f"Interrupted; the same command goes on from {out}.", file=sys.stderr)
        raise
    if as_json:
        from foretoken.bench.report.page import write_report

        write_report(out)
        print(json.dumps(results, indent=1))
    else:
        measuring.show(out, results)


def _on_ray(job: Job, context: typer.Context) -> list[Results]:
    """One shard a worker, and their record as if one had measured all."""
    from foretoken.bench.record import read_results
    from foretoken.bench.run.cluster import cluster, run_shards, shard_commands
    from foretoken.bench.run.merge import merge
    from foretoken.bench.run.resume import write_plan
    from foretoken.progress import track

    if job.given["shard"] is not None:
        raise ForetokenError("--ray makes the shards itself; leave out --shard.")
    files = [job.out / part.file for part in job.parts]
    write_plan(job.out, job.plan(None))
    if all(file.is_file() for file in files):
        return [read_results(file) for file in files]
    count: int = job.given["ray"]
    folders = [job.out / f"shard-{i}" for i in range(1, count + 1)]
    for i, folder in enumerate(folders, 1):  # what a lost worker leaves can then be gone on with
        write_plan(folder, job.plan(f"{i}/{count}"))
    commands = shard_commands(_arguments(context), count)
    with cluster(job.given["ray_address"]), track("Lines of samples", 0, True) as advance:
        done = run_shards(commands, job.out, workers=count, advance=advance)
    for shard in done:
        if shard.error is not None:
            raise ForetokenError(f"{shard.error} The same command goes on from {job.out}.")
    return merge(folders, job.out, job.suite)


def _arguments(context: typer.Context) -> list[str]:
    """The command again, without what a worker is told otherwise."""
    words = ["bench"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in _NOT_FOR_SHARDS or value is None or value == option.default:
            continue
        words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words

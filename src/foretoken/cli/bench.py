"""`foretoken bench`: measures methods and plain decoding on a suite of prompts, into a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import measuring, options, output
from foretoken.cli.bench_options import BenchOptions
from foretoken.cli.job import Job, make_job
from foretoken.errors import ForetokenError
from foretoken.files import held

if TYPE_CHECKING:
    from foretoken.bench.record import Results

_RUNNING = options.ModelOptions(max_model_len=4096)
_NOT_FOR_SHARDS = {"out", "shard", "ray", "ray_address", "as_json"}


@options.grouped
def bench(
    *,
    context: typer.Context,
    settings: BenchOptions,
    running: options.ModelOptions = _RUNNING,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the measurements as a JSON list instead.")
    ] = False,
) -> None:
    """Measure methods next to plain decoding, prompt by prompt, and write a report.

    Writes results.json, samples.jsonl, report.md and report.html. The same command resumes what
    was interrupted. --speculative-config adds one method to those of --methods.

    Example: [bold]foretoken bench --methods pld,sps --limit 5 --max-tokens 128[/bold]
    """
    try:
        job = make_job(settings, running)
        running.use_threads()
        if settings.ray and settings.shard is not None:
            raise ForetokenError("--ray makes the shards itself; leave out --shard.")
        with held(settings.out):
            results = _on_ray(job, context, settings.ray) if settings.ray else job.run()
    except KeyboardInterrupt:
        again = "a warm run begins anew, with another --out"
        again = again if settings.warm else f"the same command resumes in {settings.out}"
        output.note(f"Interrupted; {again}.")
        raise
    if as_json:
        from foretoken.bench.report.page import write_report

        write_report(settings.out)
        output.write_json(results)
    else:
        measuring.show(settings.out, results)


def _on_ray(job: Job, context: typer.Context, count: int) -> list[Results]:
    """Measure one shard a worker, and merge their records as if one process had measured all."""
    from foretoken.bench.record import read_results
    from foretoken.bench.run.cluster import run_shards, shard_commands
    from foretoken.bench.run.merge import merge
    from foretoken.bench.run.resume import write_plan
    from foretoken.progress import track
    from foretoken.ray_cluster import cluster

    settings = job.settings
    files = [settings.out / part.file for part in job.parts]
    write_plan(settings.out, job.record(None))
    if all(file.is_file() for file in files):
        return [read_results(file) for file in files]
    folders = [settings.out / f"shard-{i}" for i in range(1, count + 1)]
    for i, folder in enumerate(folders, 1):  # so that what a lost worker leaves can be resumed
        write_plan(folder, job.record(f"{i}/{count}"))
    commands = shard_commands(_arguments(context), count)
    with cluster(settings.ray_address), track("Lines of samples", 0, True) as advance:
        done = run_shards(commands, settings.out, workers=count, advance=advance)
    for shard in done:
        if shard.error is not None:
            raise ForetokenError(f"{shard.error} The same command resumes in {settings.out}.")
    return merge(folders, settings.out, job.suite)


def _arguments(context: typer.Context) -> list[str]:
    """The command line for workers, without the options that only the driver reads."""
    words = ["bench"]
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name in _NOT_FOR_SHARDS or value is None or value == option.default:
            continue
        words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words

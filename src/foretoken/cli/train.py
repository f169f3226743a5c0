"""`foretoken train`: trains a drafter for a target, from prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import options, output
from foretoken.errors import ForetokenError, one_line, shown

if TYPE_CHECKING:
    from foretoken.spellings import Conversation
    from foretoken.train.job import Job, Outcome, Progress
    from foretoken.train.recipe import Recipe


@dataclass(frozen=True)
class _TrainOptions:
    """How it is trained, as the command line gives it."""

    recipe: Annotated[
        str | None, typer.Option(help="A recipe's name or .yaml; else the method's.")
    ] = None
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the recipe, e.g. lr=5e-4.")
    ] = None
    source: Annotated[
        str,
        typer.Option(
            help="target (it writes), fixed (the file's), drafter, or e.g. target+target@1."
        ),
    ] = "target"
    after: Annotated[
        list[str] | None,
        typer.Option(help="A trained small model to draft alongside: learn what it misses."),
    ] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use this many of the prompts, evenly spread.")
    ] = None
    seed: Annotated[int, typer.Option(help="Of sampled answers, batches and first weights.")] = 0
    every: Annotated[float, typer.Option(help="Seconds between two saved states.")] = 60.0
    keep_every: Annotated[
        int | None,
        typer.Option(help="Steps between two checkpoints that stay, in OUT/checkpoints."),
    ] = None
    log_with: Annotated[
        list[str] | None,
        typer.Option(help="tensorboard or wandb, beside OUT/metrics.jsonl."),
    ] = None
    shard: Annotated[
        bool, typer.Option("--shard", help="Share the drafter out over the processes (FSDP2).")
    ] = False
    shard_target: Annotated[
        bool,
        typer.Option(
            "--shard-target",
            help="Share the target's layers out over the processes (FSDP2), where it doesn't fit "
            "beside a batch.",
        ),
    ] = False
    states: Annotated[
        Path | None,
        typer.Option(help="A folder for the target's states along the texts: computed once, kept."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print the drafter's tensors and what it takes.")
    ] = False
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto"
    precision: Annotated[
        str,
        typer.Option(
            help="Of matrix products: bfloat16, float32 or auto (bfloat16 on GPUs). bfloat16 is "
            "much faster on a CPU with AMX."
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the target.")
    ] = False

    def job(
        self,
        method: str,
        target: str,
        prompts: list[Conversation],
        recipe: Recipe,
        out: Path,
        report: Callable[[Progress], None],
    ) -> Job:
        """The training that is asked for."""
        from foretoken.train.job import Job

        return Job(
            method,
            target,
            prompts,
            recipe,
            out,
            source=self.source,
            after=self.after or (),
            seed=self.seed,
            every=self.every,
            keep_every=self.keep_every,
            log_with=self.log_with or (),
            shard=self.shard,
            shard_target=self.shard_target,
            states=self.states,
            report=report,
            device=self.device,
            precision=self.precision,
            trust_remote_code=self.trust_remote_code,
        )


@options.grouped
def train(
    *,
    method: Annotated[
        str, typer.Argument(help="A method with 'trained' in 'foretoken methods', sps or medusa2.")
    ],
    target: Annotated[str, typer.Option("--target", help="Folder, hub id or bundled name.")],
    data: Annotated[
        list[str],
        typer.Option(
            help="Conversations: .json(l) files (ShareGPT's or others), or a suite's name."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The checkpoint's folder; one begun is resumed.")],
    given: _TrainOptions,
) -> None:
    """Train a drafter for a target; killed at any moment, it is resumed by the same command.

    The target writes answers to the prompts, the drafter learns from them, and its acceptance
    length is estimated on the way and measured at the end.

    Example: [bold]foretoken train medusa --target mini --data prompts.jsonl --out my-medusa[/bold]
    """
    from foretoken.train import processes
    from foretoken.train.recipe import read_recipe
    from foretoken.train.run import make

    settings = read_recipe(given.recipe or method, dict(map(_pair, given.changes or [])))
    if given.dry_run:
        _say_what_it_holds(method, target, settings, out, given)
        return
    prompts = spread(data, given.limit)
    with _bar(settings.steps) as report:
        outcome = make(given.job(method, target, prompts, settings, out, report))
    if processes.is_first():
        _say_what_was_reached(out, outcome, given)


def spread(data: list[str], limit: int | None) -> list[Conversation]:
    """The conversations of all files and suites; of more than `limit` so many, evenly spread."""
    prompts = [each for name in data for each in conversations(name)]
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[i * len(prompts) // limit] for i in range(limit)]


def _say_what_was_reached(out: Path, outcome: Outcome, given: _TrainOptions) -> None:
    expected = outcome.expected.acceptance_length
    served = outcome.served.mean_acceptance_length
    counted = "nothing served" if given.shard_target else f"{served:.3f} served"
    output.write(
        f"{out} · {outcome.progress.step} steps · mean acceptance length {expected:.3f} estimated, "
        f"{counted}"
    )


def _say_what_it_holds(
    method: str, target: str, settings: Recipe, out: Path, given: _TrainOptions
) -> None:
    """Of several processes the first one says it."""
    from foretoken.train import processes
    from foretoken.train.dry_run import dry_run
    from foretoken.train.run import checked

    checked(given.job(method, target, [], settings, out, lambda progress: None))
    if not processes.is_first():
        return
    among, target_among = (
        processes.count() if each else 1 for each in (given.shard, given.shard_target)
    )
    found = dry_run(method, target, settings, among, given.trust_remote_code, target_among)
    for name, shape in found.tensors.items():
        output.write(f"{name}  {' × '.join(map(str, shape))}")
    output.write(
        f"\nTarget: {found.target / 1e9:.2f} B parameters; drafter: {found.drafter / 1e6:.1f} M"
    )
    for name, size in found.parts.items():
        output.write(f"{size / 1e9:8.2f} GB  {name}")
    output.write(
        f"{found.bytes / 1e9:8.2f} GB  a process, which reads {settings.rows} × {settings.length} "
        f"tokens {settings.accumulation} times a step"
    )


def _pair(change: str) -> tuple[str, Any]:
    """A setting's name and its value, which is read as YAML."""
    import yaml

    key, sign, value = change.partition("=")
    if not sign:
        raise ForetokenError(
            f"--set takes name=value, e.g. --set lr=5e-4, and not {shown(change)}."
        )
    try:
        return key.strip(), yaml.safe_load(value)
    except (ValueError, yaml.YAMLError) as error:
        raise ForetokenError(
            f"--set {shown(change)} has a value that can't be read ({one_line(error)}); write it "
            "as in a recipe, e.g. --set 'shape={num_layers: 2}'."
        ) from error


def conversations(name: str) -> list[Conversation]:
    """The conversations of a file or of a suite."""
    from foretoken.bench.suites.suite import find_suite
    from foretoken.spellings import Conversation
    from foretoken.train.data import FILES, read_conversations

    if name.endswith(FILES):
        return read_conversations(Path(name))
    read = []
    for prompt in find_suite(name).prompts:
        system = [{"role": "system", "content": prompt.system}] if prompt.system else []
        first, *later = prompt.turns
        messages = (*system, {"role": "user", "content": first})
        read.append(Conversation(messages, tuple(later)))
    return read


@contextmanager
def _bar(steps: int) -> Iterator[Callable[[Progress], None]]:
    """A bar with the loss and the estimate; where standard error is no terminal, a line now and
    then; nothing from any but the first of several processes."""
    from foretoken.train import processes

    if not processes.is_first():
        yield lambda progress: None
        return
    if not sys.stderr.isatty():
        yield _line
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns: tuple[Any, ...] = (
        TextColumn("Training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]} · acceptance length {task.fields[best]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps, loss="–", best="–", visible=False)

        def report(now: Progress) -> None:
            best = f"{now.best:.2f}" if now.best else "–"
            bar.update(task, completed=now.step, loss=f"{now.loss:.3f}", best=best, visible=True)

        yield report


def _line(now: Progress) -> None:
    if now.step % 10 == 0:
        best = f"{now.best:.3f}" if now.best else "–"
        output.note(f"step {now.step}: loss {now.loss:.4f}, best estimate {best}")

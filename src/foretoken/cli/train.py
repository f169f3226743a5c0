"""`foretoken train`: trains a drafter for a target, from prompts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError, one_line, shown

if TYPE_CHECKING:
    from foretoken.spellings import Conversation
    from foretoken.train.job import Progress
    from foretoken.train.recipe import Recipe

_Method = Annotated[
    str, typer.Argument(help="A method with 'trained' in 'foretoken methods', sps or medusa2.")
]
_Target = Annotated[str, typer.Option("--target", help="Folder, hub id or bundled name.")]
_Data = Annotated[
    list[str],
    typer.Option(help="Conversations: .json(l) files (ShareGPT's or others), or a suite's name."),
]
_Out = Annotated[Path, typer.Option(help="The checkpoint's folder; one begun is resumed.")]
_Recipe = Annotated[str | None, typer.Option(help="A recipe's name or .yaml; else the method's.")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the recipe, e.g. lr=5e-4.")
]
_Source = Annotated[
    str,
    typer.Option(help="target (it writes), fixed (the file's), drafter, or e.g. target+target@1."),
]
_After = Annotated[
    list[str] | None,
    typer.Option(help="A trained small model to draft alongside: learn what it misses."),
]
_Limit = Annotated[
    int | None, typer.Option(min=1, help="Use this many of the prompts, evenly spread.")
]
_Every = Annotated[float, typer.Option(help="Seconds between two saved states.")]
_Keep = Annotated[
    int | None, typer.Option(help="Steps between two checkpoints that stay, in OUT/checkpoints.")
]
_Dry = Annotated[
    bool, typer.Option("--dry-run", help="Only say what it would hold, by the target's config.")
]
_Log = Annotated[
    list[str] | None,
    typer.Option(help="tensorboard or wandb, beside OUT/metrics.jsonl."),
]
_Shard = Annotated[
    bool, typer.Option("--shard", help="Share the drafter out over the processes (FSDP2).")
]
_ShardTarget = Annotated[
    bool,
    typer.Option(
        "--shard-target",
        help="Share the target's layers out over the processes (FSDP2), where it doesn't fit "
        "beside a batch.",
    ),
]
_Precision = Annotated[
    str,
    typer.Option(
        help="Of products: bfloat16, float32 or auto (bfloat16 on GPUs). bfloat16 is much faster "
        "on a CPU with AMX."
    ),
]
_States = Annotated[
    Path | None,
    typer.Option(help="A folder for the target's states along the texts: computed once, kept."),
]
_TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with the target.")
]


def train(
    method: _Method,
    target: _Target,
    data: _Data,
    out: _Out,
    recipe: _Recipe = None,
    changes: _Set = None,
    source: _Source = "target",
    after: _After = None,
    limit: _Limit = None,
    seed: Annotated[int, typer.Option(help="Of texts, batches and weights.")] = 0,
    every: _Every = 60.0,
    keep_every: _Keep = None,
    log_with: _Log = None,
    shard: _Shard = False,
    shard_target: _ShardTarget = False,
    states: _States = None,
    dry_run: _Dry = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    precision: _Precision = "auto",
    trust_remote_code: _TrustRemoteCode = False,
) -> None:
    """Train a drafter for a target; killed at any moment, it is resumed by the same command.

    The target writes answers to the prompts, the drafter learns from them, and its acceptance
    length is estimated on the way and measured at the end.

    Example: [bold]foretoken train medusa --target mini --data prompts.jsonl --out my-medusa[/bold]
    """
    from foretoken.train import processes
    from foretoken.train.recipe import read_recipe
    from foretoken.train.run import make

    settings = read_recipe(recipe or method, dict(map(_pair, changes or [])))
    if dry_run:
        _say_what_it_holds(method, target, settings, shard, shard_target, trust_remote_code)
        return
    prompts = [each for name in data for each in conversations(name)]
    if limit is not None and limit < len(prompts):
        prompts = [prompts[i * len(prompts) // limit] for i in range(limit)]
    with _bar(settings.steps) as report:
        outcome = make(
            method,
            target,
            prompts,
            settings,
            out,
            source=source,
            after=after or (),
            seed=seed,
            every=every,
            keep_every=keep_every,
            log_with=log_with or (),
            shard=shard,
            shard_target=shard_target,
            states=states,
            report=report,
            device=device,
            precision=precision,
            trust_remote_code=trust_remote_code,
        )
    if not processes.is_first():
        return
    expected = outcome.expected.acceptance_length
    served = outcome.served.mean_acceptance_length
    counted = "nothing served" if shard_target else f"{served:.3f} served"
    output.write(
        f"{out} · {outcome.progress.step} steps · mean acceptance length {expected:.3f} estimated, "
        f"{counted}"
    )


def _say_what_it_holds(
    method: str,
    target: str,
    settings: Recipe,
    shard: bool,
    shard_target: bool,
    trust_remote_code: bool,
) -> None:
    """Of several processes the first one says it."""
    from foretoken.train import processes, shards
    from foretoken.train.dry_run import dry_run

    if shard:
        shards.check("shard", "a drafter")
    if shard_target:
        shards.check("shard_target", "the target")
    if not processes.is_first():
        return
    among, target_among = (processes.count() if each else 1 for each in (shard, shard_target))
    found = dry_run(method, target, settings, among, trust_remote_code, target_among)
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

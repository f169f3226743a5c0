"""`foretoken recommend`: which method, if any, makes a model faster on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import options, output
from foretoken.cli.options import in_panel, numbers

if TYPE_CHECKING:
    from foretoken.bench.suites.suite import Prompt
    from foretoken.recommender.recommendation import Recommendation
    from foretoken.recommender.verdict import Row

_MEASURING = "Measuring"
_STANDARD_INPUT = "-"


@options.grouped
def recommend(
    *,
    model: options.Model = "mini",
    draft_model: Annotated[
        list[str] | None,
        in_panel("Model", "--draft-model", help="A model to draft with; may be repeated."),
    ] = None,
    running: options.ModelOptions,
    prompts: Annotated[
        str | None,
        in_panel(_MEASURING, "--prompts", help="A file of text or JSON lines, or - to read one."),
    ] = None,
    batch: Annotated[
        str,
        in_panel(_MEASURING, "--batch", "--batch-sizes", help="Sequences at once, by comma."),
    ] = "1",
    temperature: Annotated[
        str,
        in_panel(_MEASURING, "--temperature", "--temperatures", help="By comma; 0 is greedy."),
    ] = "0,1",
    seconds: Annotated[
        float, in_panel(_MEASURING, "--seconds", help="For loading and measuring together.")
    ] = 300.0,
    max_tokens: Annotated[
        int, in_panel(_MEASURING, "--max-tokens", min=1, help="Most tokens of an answer.")
    ] = 64,
    seed: Annotated[int, in_panel(_MEASURING, "--seed", help="Of everything random.")] = 0,
    save: Annotated[
        str | None,
        typer.Option("--save", help='A name for it, used as {"tuned": NAME}, or a path.json.'),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON object.")] = False,
) -> None:
    """Find out which method makes a model faster here: how much, at which batch and temperature.

    Tries what applies on a few prompts, times the best in turn with plain decoding, and ends with a
    sentence and what to paste. Ctrl-C ends it early, with what is known by then. With
    --speculative-config your own method is timed too.

    Example: [bold]foretoken recommend --model mini --seconds 60[/bold]
    """
    from foretoken.recommender import recommend as recommending
    from foretoken.recommender.recommendation import saved_at

    running.check_no_draft_backend()
    if save is not None:
        saved_at(save)
    running.check_no_weights_memory()
    running.use_threads()
    found = recommending.recommend(
        running.named(model),
        draft_models=draft_model or (),
        prompts=_prompts(prompts, seed),
        batch_sizes=numbers(batch, int, "--batch"),
        temperatures=numbers(temperature, float, "--temperature"),
        seconds=seconds,
        max_tokens=max_tokens,
        seed=seed,
        speculative_config=running.given_config() or None,
        dtype=running.dtype,
        device=running.device,
        backend=running.backend,
        max_model_len=running.max_model_len,
        kv_cache_memory=running.kv_cache_memory,
        trust_remote_code=running.trust_remote_code,
        show=True,
        tell=output.note,
    )
    if as_json:
        output.write_json(found.data())
    else:
        _show(found)
    if save is not None:
        path = found.save(save)
        output.note(f'Saved as {path}: speculative_config={{"tuned": "{save}"}}')


def _prompts(given: str | None, seed: int) -> Path | Seq[Prompt] | None:
    from foretoken.recommender.texts import split

    if given == _STANDARD_INPUT:
        return split(sys.stdin.read(), "standard input", seed)
    return None if given is None else Path(given)


def _show(found: Recommendation) -> None:
    """The table, what was left out and why, and at the end the conclusion and what to paste."""
    console = output.console(width=100)
    if found.rows:
        console.print(_table(found.rows))
        console.print()
    if found.screened:
        best = [(max(one.speedups.values()), one.best.label) for one in found.screened]
        left_out = ", ".join(f"{label} {speed:.2f}×" for speed, label in sorted(best, reverse=True))
        console.print(f"Not timed, by what screening predicts at best: {left_out}", style="dim")
    for label, reason in found.not_run.items():
        console.print(f"Without {label}: {reason}", style="dim", soft_wrap=True)
    for note in found.notes:
        console.print(note, soft_wrap=True)
    console.print(
        f"\n{found.sentence[0].upper()}{found.sentence[1:]}.", style="bold", soft_wrap=True
    )
    for row in found.chosen:
        for place, line in found.usage(row):
            head = f"{place}:" if len(found.chosen) == 1 else f"{row.method}, {place}:"
            console.print(f"  {head}\n    {line}", soft_wrap=True)


def _table(rows: Seq[Row]) -> Any:
    heads = ("method", "batch", "T", "tokens/s", "tokens/step", "speedup (95 %)", "groups")
    shown = output.table(*heads, right=heads[1:])
    for row in rows:
        where = str(row.cell.batch_size), f"{row.cell.temperature:g}"
        speed = f"{row.tokens_per_second:,.1f}", f"{row.tokens_per_step:.2f}"
        gain = "–" if row.config is None else str(row)
        shown.add_row(row.method, *where, *speed, gain, str(row.groups))
    return shown

"""`foretoken edit`: changes a file by an instruction, and shows what changed."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from foretoken.cli import options
from foretoken.cli.output import console, note, write
from foretoken.errors import ForetokenError
from foretoken.files import check_writable, replacing, utf8

if TYPE_CHECKING:
    from foretoken.apps.edit import Edited

_STYLES = {"---": "bold", "+++": "bold", "@@ ": "cyan", "-": "red", "+": "green"}


@options.grouped
def edit(
    *,
    file: Annotated[Path, typer.Argument(help="The file to change: text in UTF-8.")],
    instruction: Annotated[str, typer.Argument(help="What is to be changed.")],
    in_place: Annotated[
        bool, typer.Option("--write", help="Write the changed file in its place.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the changed file here.")
    ] = None,
    model: options.Model = "mini",
    tokenizer: options.Tokenizer = None,
    model_impl: options.ModelImpl = "auto",
    drafting: options.Drafting,
    running: options.ModelOptions,
    sampling: options.SamplingOptions,
    seed: options.Seed = None,
    max_tokens: Annotated[
        int | None,
        options.in_panel(
            "Sampling",
            "--max-tokens",
            help="Most tokens to write; by default twice the file's and 512.",
        ),
    ] = None,
) -> None:
    """Change a file by an instruction, and print what changed as a unified diff.

    The file is drafted as the prediction of the answer, whatever the method, so parts that stay as
    they are cost few passes. Nothing is written without --write or --output. Standard error says
    how the drafting went.

    Example: [bold]foretoken edit --model model.gguf area.py "Rename f to area." --write[/bold]
    """
    from foretoken.apps.edit import edit as changed

    place = _destination(file, in_place, output)
    content = file.read_bytes()
    text = _text(file, content)
    config = running.config(drafting)
    params = sampling.params(seed=seed, max_tokens=max_tokens)
    llm = running.llm(model, config, tokenizer=tokenizer, model_impl=model_impl, max_num_seqs=1)
    edited = changed(llm, text, instruction, params, use_tqdm=True)
    _show(edited.diff(str(file)))
    note(f"[{llm.method}] {_told(edited)}")
    if not edited.complete:
        _refuse_incomplete(edited, place)
    elif place is not None:
        if in_place:
            _check_kept(file, content, edited)
        _replace(place, edited.text)


def _destination(file: Path, in_place: bool, output: Path | None) -> Path | None:
    """Where the changed file goes, if anywhere: links are followed."""
    if in_place and output is not None:
        raise ForetokenError("--write and --output are two places; give one of them.")
    place = file if in_place else output
    if place is None:
        return None
    check_writable(place.resolve())
    return place.resolve()


def _text(file: Path, content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{file} is not UTF-8 text; convert it first.") from error
    if "\0" in text:
        raise ForetokenError(f"{file} is a binary file; only text can be changed.")
    return text


def _show(diff: str) -> None:
    """The diff: in colours on a terminal, else as it is."""
    if not sys.stdout.isatty():
        write(diff, end="")
        return
    screen = console()
    for line in diff.split("\n")[:-1]:
        style = next((s for start, s in _STYLES.items() if line.startswith(start)), "")
        screen.print(Text(line, style), soft_wrap=True)


def _told(edited: Edited) -> str:
    """One line on how the drafting went."""
    stats = edited.output.stats
    parts = [
        f"{stats.tokens} tokens",
        f"{stats.passes} passes",
        f"{stats.mean_acceptance_length:.2f} tokens a pass",
        f"{stats.tokens / stats.total_time:,.0f} tokens/s" if stats.total_time else "",
        f"of the prediction's {edited.predicted} tokens {stats.accepted_prediction_tokens} "
        f"accepted, {stats.rejected_prediction_tokens} rejected",
    ]
    if edited.text == edited.before:
        parts.append("nothing changed")
    return " · ".join(part for part in parts if part)


def _refuse_incomplete(edited: Edited, place: Path | None) -> None:
    """Say that the end is missing; an error where the file was to be written."""
    told = f"The answer was cut off after {len(edited.output.token_ids)} tokens"
    remedy = "raise --max-tokens"
    if edited.output.outputs[0].finish_reason == "stop":  # where the model ends
        told = "The answer ended before its block was closed"
        remedy = "word the instruction otherwise, or sample with another seed"
    told += ", so the end of the file is missing"
    if place is not None:
        raise ForetokenError(f"{told} and {place} wasn't written; {remedy}.")
    note(f"{told}; {remedy}.")


def _check_kept(file: Path, content: bytes, edited: Edited) -> None:
    """Raise `ForetokenError` where the file would be lost: it has changed meanwhile, or what would
    take its place is no block and has nothing of it, as where a model says that it can't."""
    if file.read_bytes() != content:
        raise ForetokenError(f"{file} has changed meanwhile, so it wasn't written; try again.")
    before, after = ({*map(str.strip, text.split("\n"))} for text in (edited.before, edited.text))
    if before - {""} and "```" not in edited.output.text and not before & after - {""}:
        raise ForetokenError(
            f"The answer is no block and has no line of {file}, which wasn't written; word the "
            "instruction otherwise, or write the answer elsewhere by --output."
        )


def _replace(place: Path, text: str) -> None:
    """Write or replace a file whole; one that was there keeps its permissions."""
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    with replacing(place) as file:
        if mode is not None:
            os.chmod(file.fileno(), mode)
        file.write(utf8(text))

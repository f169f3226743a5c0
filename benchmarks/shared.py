"""What the scripts here share: their options, and where their results go.

Every script takes --model and --draft-model (by default the bundled pair), prints its numbers
and writes results/<name>.json with the environment that it was measured in.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import transformers

from foretoken import LLM, zoo
from foretoken.bench.measure.bootstrap import interval
from foretoken.bench.measure.environment import environment
from foretoken.bench.suites.suite import Prompt, load_suite
from foretoken.cli.zoo import write
from foretoken.errors import ForetokenError
from foretoken.files import write_json
from foretoken.machine import cache_folder
from foretoken.models.load import find

RESULTS = Path(__file__).parent / "results"
_OF_A_PART = ("cpu", "cores", "threads", "foretoken", "git_commit", "date")


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="mini", help="the target (default: mini)")
    parser.add_argument("--draft-model", default="mini-draft", help="its drafter")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return parser


def of_several(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What a script was given that takes models by themselves, and no pair."""
    parser.add_argument("models", nargs="+", metavar="MODEL")
    given = parser.parse_args()
    for name in ("model", "draft_model"):
        if getattr(given, name) != parser.get_default(name):
            parser.error(f"name models without --{name.replace('_', '-')}")
        setattr(given, name, "")
    return given


def exit_with(main: Callable[[], int]) -> NoReturn:
    """End the process with what a script's `main` returns, or with its error in one line."""
    try:
        sys.exit(main())
    except ForetokenError as error:
        sys.exit(f"Error: {error}")


def save(name: str, given: argparse.Namespace, results: dict[str, Any]) -> None:
    """Write the record and say where it is."""
    pair = {"model": Path(given.model).name, "draft_model": Path(given.draft_model).name}
    path = given.out / f"{name}.json"
    write_json(path, {"benchmark": name, "environment": environment(), **pair, **results})
    print(f"\n-> {path}")


def stamp() -> dict[str, Any]:
    """The environment of one part of a record that grows part by part: the record's own is that
    of the last writing."""
    here = environment()
    return {name: here[name] for name in _OF_A_PART}


def forget(llm: LLM) -> None:
    """What its drafter and its caches know of earlier answers, before an answer that is timed."""
    if llm.engine.drafter.shared is not None:
        llm.engine.drafter.shared.reset()
    llm.reset_prefix_cache()


def bundled(limit: int | None = None) -> list[Prompt]:
    """The bundled prompts, all tasks in turn."""
    return load_suite(zoo.prompts_path(), "bundled prompts").round_robin(limit)


def corpus_of(given: argparse.Namespace) -> list[str]:
    """What a record calls the texts that were searched: those of `--corpus`, or the prompts."""
    return [Path(file).name for file in given.corpus] or ["bundled prompts"]


def table(rows: list[list[str]]) -> None:
    """Print rows in columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]))


def times_plain(plain: list[float], own: list[float], longer: float = 1.0) -> dict[str, Any]:
    """Tokens a second over plain decoding's, with an interval over the texts. plain, own: seconds
    of each text; longer: tokens over plain's."""

    def ratio(sums: Any) -> Any:
        return longer * sums[..., 0] / sums[..., 1]

    seconds = np.array([plain, own]).T
    found = interval(seconds, ratio, tail=0.025, resamples=10_000)
    ends = None if found is None else [round(end, 3) for end in found]
    return {"times_plain": round(float(ratio(seconds.sum(0))), 3), "times_plain_ci95": ends}


def inflated(
    model: str, shape: str, dtype: torch.dtype = torch.float32, like: str | None = None
) -> Path:
    """`model` inflated to a named shape: made once, kept in the user's cache folder.

    With `like`, a target, `model` is its drafter and keeps its share of the target's cost.
    """
    kind = str(dtype).removeprefix("torch.")
    folder = cache_folder() / "inflated" / f"{Path(model).name}-{shape}-{kind}"
    if not (folder / "config.json").is_file():  # written last
        write(find(model), folder, shape, find(like) if like else None, kind)
    return folder

"""`foretoken tune`: finds the fastest options of a method for a target and prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from foretoken.cli import options, output
from foretoken.errors import ForetokenError

_SEARCH = "Search"


@dataclass(frozen=True)
class _SearchOptions:
    """On which prompts and how long is searched, and where the result is kept."""

    prompts: Annotated[
        str,
        options.in_panel(_SEARCH, "--prompts", help="A suite, or a file of prompts as JSON lines."),
    ] = "bundled"
    limit: Annotated[
        int, options.in_panel(_SEARCH, "--limit", min=1, help="Most prompts of a task.")
    ] = 1
    trials: Annotated[
        int, options.in_panel(_SEARCH, "--trials", min=1, help="Candidates on the cost model.")
    ] = 30
    finalists: Annotated[
        int, options.in_panel(_SEARCH, "--finalists", min=1, help="How many are timed.")
    ] = 3
    rounds: Annotated[
        int, options.in_panel(_SEARCH, "--rounds", min=1, help="How often each is timed.")
    ] = 5
    name: Annotated[
        str | None,
        options.in_panel(_SEARCH, "--name", help="What it is called; by default model-method."),
    ] = None
    out: Annotated[
        Path | None,
        options.in_panel(
            _SEARCH, "--out", "-o", help="A file for it, instead of the cache folder."
        ),
    ] = None

    def place(self, name: str) -> tuple[str, Path]:
        """The name of what is found, `name` where none is given, and its file. Raises
        `ForetokenError` where these couldn't be told apart, or nothing can be written there."""
        from foretoken.files import check_writable
        from foretoken.tuned import SUFFIX, tuned_path

        label = self.name or name
        if label.endswith(SUFFIX):
            raise ForetokenError(
                f"--name is {label}; leave {SUFFIX} off, by which a path is told from a name."
            )
        if self.out is not None and self.out.suffix != SUFFIX:
            raise ForetokenError(
                f"--out is {self.out}; end it in {SUFFIX}, by which a path is told from a name."
            )
        path = self.out or tuned_path(label)
        check_writable(path)
        return label, path


@options.grouped
def tune(
    *,
    model: options.Model = "mini",
    tokenizer: options.Tokenizer = None,
    model_impl: options.ModelImpl = "auto",
    running: options.ModelOptions,
    method: Annotated[
        str | None,
        options.in_panel(_SEARCH, "--method", help="What is tuned; else what -sc names, or sps."),
    ] = None,
    draft_model: options.DraftModel = None,
    given: _SearchOptions,
    temperature: options.Temperature = 0.0,
    max_tokens: options.MaxTokens = 64,
    seed: options.Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON object.")] = False,
) -> None:
    """Find a method's fastest options for a target and prompts, and save them.

    Candidates are judged by what is accepted and what passes cost, then the best few by the clock.
    Options in --speculative-config are kept as they are. The result is used by
    speculative_config={"tuned": "NAME"}, or by its path. Ctrl-C ends the search early, and the best
    options so far are written.

    Example: [bold]foretoken tune --method sps --draft-model mini-draft --trials 20[/bold]
    """
    from foretoken.bench.plan import select
    from foretoken.bench.suites.suite import find_suite
    from foretoken.cli.prompts import prompt_ids
    from foretoken.files import write_json
    from foretoken.progress import track
    from foretoken.sampling.params import SamplingParams
    from foretoken.tune.options import Tuner
    from foretoken.tune.options import tune as search

    config = _config(running, model, method, draft_model)
    label, path = given.place(f"{Path(model).name}-{config['method']}")
    suite = find_suite(given.prompts)
    llm = running.llm(model, None, tokenizer=tokenizer, model_impl=model_impl, max_num_seqs=1)
    params = SamplingParams(
        temperature=temperature, max_tokens=max_tokens, seed=seed or 0, ignore_eos=True
    )
    ids = [prompt_ids(llm, prompt.turns[0]) for prompt in select(suite, None, given.limit)]
    ids = _fitting(ids, llm.engine.target.max_length - max_tokens)
    with track(f"Tuning {config['method']}", given.trials + given.rounds + 1, True) as advance:
        tuned = search(
            Tuner(llm, config, ids, params),
            config,
            trials=given.trials,
            finalists=given.finalists,
            rounds=given.rounds,
            seed=seed or 0,
            advance=advance,
        )
    about = {"name": label, "model": model, "prompts": len(ids), "suite": suite.name}
    record = {**about, "temperature": temperature, "max_tokens": max_tokens, **tuned}
    write_json(path, record)
    if not tuned["finished"]:
        how = "timed so far" if tuned["timed"] else "by prediction, none of which was timed"
        output.note(f"Interrupted after {tuned['trials']} candidates; the best {how} is kept.")
    if as_json:
        output.write_json(record)
    else:
        _show(tuned, path, None if given.out else label)


def _fitting(prompts: list[list[int]], most: int) -> list[list[int]]:
    """The prompts of at most so many tokens; all where there are none, of which the engine says
    what is wrong."""
    fitting = [each for each in prompts if len(each) <= most]
    if fitting and len(fitting) < len(prompts):
        left = len(prompts) - len(fitting)
        output.note(f"{left} of {len(prompts)} prompts leave no room for an answer.")
    return fitting or prompts


def _config(
    running: options.ModelOptions, model: str, method: str | None, draft_model: str | None
) -> dict[str, Any]:
    """The configuration to tune, with the options that stay as they are."""
    from foretoken.config import unmet_needs
    from foretoken.methods import Need

    chosen = running.given_config()
    chosen["method"] = method or chosen.get("method", "sps")
    if draft_model is None and Need.DRAFT_MODEL in unmet_needs(chosen):
        draft_model = options.BUNDLED_DRAFTS.get(model)
    config = running.config(options.Drafting(chosen["method"], draft_model))
    assert config is not None
    return config


def _show(tuned: dict[str, Any], path: Path, label: str | None) -> None:
    """Print what was timed, the fastest first, and how to use it."""
    console = output.console()
    shown = output.table("tokens/s", "speedup", "options", right=("tokens/s", "speedup"))
    for row in sorted(tuned["timed"], key=lambda row: -row["tokens_per_second"]):
        common = ("method", "model")
        changed = ", ".join(f"{k}={v}" for k, v in row["options"].items() if k not in common)
        speed = f"{row['tokens_per_second']:,.1f}", f"{row['speedup']:.2f}"
        shown.add_row(*speed, changed or "the defaults")
    if tuned["timed"]:
        console.print(shown)
        if tuned["speedup"] < 1:
            console.print("\nPlain decoding is faster than any of these.")
    given = json.dumps({"tuned": label or str(path)})
    console.print(f"\n-> {path}\n   speculative_config={given}", soft_wrap=True)

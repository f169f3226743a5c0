"""`foretoken certify`: checks that a method writes what the target alone would write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import options, output
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.certify import Check, Plan
    from foretoken.llm import LLM
    from foretoken.sampling.params import SamplingParams

_SIX = ("T=0.3 plain", "T=1 top_k", "T=1 top_p", "T=1 repetition", "T=1.5 plain", "T=1.5 min_p")
"""Every temperature and processor at least once; all fifteen cells are tried on a tiny model."""
_MANY = 12
"""Prompts of --all."""
_CODE = ("torch", "transformers", "foretoken", "git_commit")
"""The keys of the environment that must be equal for a certificate to be resumed."""
_EXACT = options.ModelOptions(dtype="float64")
_PLAIN = options.SamplingOptions(temperature=1.0)
_COLOURS = {"passed": "green", "near_tie": "yellow", "failed": "red"}


@dataclass(frozen=True)
class _Checking:
    """What is checked, and how closely."""

    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="Your own prompt; may be repeated.")
    ] = None
    samples: Annotated[
        int, typer.Option("--samples", min=100, help="Texts sampled for each distribution check.")
    ] = 4000
    first_tokens: Annotated[
        int,
        typer.Option("--first-tokens", min=1, help="Tokens whose joint distribution is checked."),
    ] = 2
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer prompts, samples and cells: under a minute.")
    ] = False
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Every method that fits, every exact rule, six cells, more tokens."
        ),
    ] = False
    drafters: Annotated[
        Path | None,
        typer.Option(
            help="For --all: only the methods that the trained drafters in this folder draft with, "
            "each drafter in a folder; else the bundled ones and all methods that need none."
        ),
    ] = None


@options.grouped
def certify(
    *,
    model: options.Model = "mini",
    tokenizer: options.Tokenizer = None,
    model_impl: options.ModelImpl = "auto",
    drafting: options.Drafting,
    running: options.ModelOptions = _EXACT,
    verifier: Annotated[
        str | None,
        typer.Option(
            "--verifier", help="Another acceptance rule: its name or package.module:Class."
        ),
    ] = None,
    sampling: options.SamplingOptions = _PLAIN,
    checking: _Checking,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the record here as JSON; one begun is resumed."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the record instead.")] = False,
) -> None:
    """Check a method on a target: greedy identity, seeded identity, and the distribution of sampled
    text.

    Exits with 1 if a check failed. Sampling options, if given, are the one cell that is checked.
    Your drafter or rule is given as package.module:Class.

    Example: [bold]foretoken certify --method sps --draft-model mini-draft --quick[/bold]
    """
    config = running.config(drafting)  # without "tuned", whose file may change meanwhile
    if verifier is not None:
        config = {**(config or {}), "verifier": verifier}
    everything = checking.everything
    _check_choice(config, drafting.draft_model, everything, checking.drafters)
    cell = None if sampling == _PLAIN else sampling.params()
    plain = running.llm(model, None, tokenizer=tokenizer, model_impl=model_impl, max_num_seqs=3)
    plan = _plan(plain, cell, checking)
    trained = _trained(plain, checking.drafters) if everything else []
    names = [Path(one["model"]).name for one in trained]
    others = {} if checking.drafters is not None else {"all": drafting.draft_model}
    methods = {**others, "trained": names}
    given = [{"model": drafting.draft_model}, *trained] if everything else [config or {}]
    head = _head(plain, model, plan, methods if everything else config, given)
    checks = _read_checks(out, head)
    with TemporaryDirectory() as folder:
        if everything:
            small = drafting.draft_model or options.BUNDLED_DRAFTS.get(model)
            configs = _all_that_serve(plain, small, trained, checking, folder)
        else:
            configs = [config or _no_method()]
        for check in _run(plain, configs, plan, checks, not as_json):
            checks.append(check)
            if out is not None:  # after every check, so that nothing is lost when killed
                _save(out, _record(head, checks))
    if as_json:
        output.write_json(_record(head, checks))
    else:
        _table(checks)
    if any(check.outcome == "failed" for check in checks):
        raise typer.Exit(1)


def _check_choice(
    config: dict[str, Any] | None, draft_model: str | None, everything: bool, drafters: Path | None
) -> None:
    """Refuse a method together with --all, and what only --all reads without it."""
    if everything and config not in (None, {"model": draft_model}):
        raise ForetokenError("--all checks every method; leave it out to check one of your own.")
    if drafters is not None and not everything:
        raise ForetokenError("--drafters is for --all; give both or neither.")


def _no_method() -> dict[str, Any]:
    raise ForetokenError("Name what is to be checked, e.g. --method pld, or give --all.")


def _all_that_serve(
    plain: LLM,
    draft_model: str | None,
    trained: list[dict[str, Any]],
    checking: _Checking,
    folder: str,
) -> list[dict[str, Any]]:
    """What --all checks: `trained`, and without --drafters every other method, too. folder: for a
    datastore."""
    rest = []
    if checking.drafters is None:
        rest = _every_method(draft_model, _datastore(plain, checking.prompt, folder))
    configs = [one for one in [*rest, *trained] if _can_serve(plain, one)]
    if not configs:
        raise ForetokenError("No method can serve this target, so nothing is checked.")
    return configs


def _datastore(plain: LLM, given: list[str] | None, folder: str) -> str:
    """A datastore for REST: the target's answers to more prompts than are checked."""
    from foretoken.cli.prompts import given_or_bundled
    from foretoken.lookup.datastore import build
    from foretoken.sampling.params import SamplingParams

    prompts = [list(prompt) for prompt in given_or_bundled(plain, given, 2 * _MANY)]
    answers = plain.generate(prompts, SamplingParams(temperature=0, max_tokens=32))
    texts = [p + a.outputs[0].token_ids for p, a in zip(prompts, answers, strict=True)]
    build(folder, {"vocab_size": plain.model.vocab_size}, texts)
    return folder


def _can_serve(plain: LLM, config: dict[str, Any]) -> bool:
    """Whether the target can be served by a method; what it lacks is said on standard error."""
    from foretoken.certify import with_method

    try:
        with_method(plain, config, 1).close()
    except ForetokenError as error:
        rule = f" by {config['verifier']}" if "verifier" in config else ""
        output.note(f"Without {config['method']}{rule}: {error}")
        return False
    return True


def _trained(plain: LLM, folder: Path | None) -> list[dict[str, Any]]:
    """Every lossless row of the method table that drafts with weights trained for this target, with
    each of the folder's, or the bundled, checkpoints that it can draft with."""
    from foretoken import zoo
    from foretoken.bench.plan import trained_configs
    from foretoken.trainable.checkpoint import checkpoints

    folders = [zoo.path(name) for name in zoo.names()] if folder is None else [*folder.glob("*/")]
    drafters = checkpoints(sorted(folders), plain.model)
    if folder is not None and not drafters:
        raise ForetokenError(f"None of the folders in {folder} holds a drafter for this target.")
    return trained_configs(drafters)


def _every_method(draft_model: str | None, datastore: str) -> list[dict[str, Any]]:
    """Every lossless row of the method table that needs no training, two of them composed, and
    small-model chains under every other exact rule for them; without a draft model those that need
    one are left out, as standard error says."""
    from foretoken.config import COMBINERS, options_of
    from foretoken.methods import METHODS, Need

    rows = [row for row in METHODS.values() if row.lossless and not row.trained]
    if draft_model is None:
        small = [row.name for row in rows if Need.DRAFT_MODEL in row.needs]
        named = ", ".join(small)
        output.note(f"Without {named}: they draft with a small model; name one by --draft-model.")
        rows = [row for row in rows if row.name not in small]
    needed = {"model": draft_model, "datastore": datastore}
    configs: list[dict[str, Any]] = [
        {key: needed[key] for key in needed if needed[key] and key in options_of(row.name)}
        | {"method": row.name}
        for row in rows
    ]
    if draft_model is None:
        return configs
    chain = {"method": "sps", "model": draft_model}
    configs += [{**chain, "method": f"pld{mark}sps"} for mark in COMBINERS]
    return [*configs, *({**chain, "verifier": name} for name in _rules_of_chains())]


def _rules_of_chains() -> list[str]:
    """The exact rules for drawn chains, but for that of `sps`."""
    from foretoken.methods import METHODS
    from foretoken.registry import verifier_class, verifier_names
    from foretoken.tree import Kind

    rules = [name for name in verifier_names() if name != METHODS["sps"].verifier]
    return [
        name
        for name in rules
        if (rule := verifier_class(name)).exact
        and rule.sampling
        and Kind.INDEPENDENT in rule.kinds
        and name != "optimal_transport"  # a reference for tiny vocabularies
    ]


def _plan(plain: LLM, cell: SamplingParams | None, checking: _Checking) -> Plan:
    from foretoken.certify import PROCESSORS, TEMPERATURES, Plan, cells
    from foretoken.cli.prompts import given_or_bundled

    quick, everything = checking.quick, checking.everything
    named = cells(TEMPERATURES, list(PROCESSORS))
    prompts = given_or_bundled(plain, checking.prompt, 2 if quick else _MANY if everything else 6)
    if cell is not None:
        chosen = {f"T={cell.temperature:g} as given": cell}
    elif everything:
        chosen = {name: cell for name, cell in named.items() if name in _SIX}
    else:
        chosen = cells(TEMPERATURES[:1], ["plain", "top_p"] if quick else list(PROCESSORS))
    return Plan(
        tuple(prompts),
        chosen,
        batches=(1, 4 if everything else 3),
        max_tokens=16 if quick else 64 if everything else 32,
        samples=min(checking.samples, 1000) if quick else checking.samples,
        first_tokens=checking.first_tokens,
    )


def _run(
    plain: LLM, configs: list[dict[str, Any]], plan: Plan, done: list[Check], show: bool
) -> Iterator[Check]:
    """Run the checks that are not `done`, and yield each outcome."""
    from foretoken.certify import checked, lines
    from foretoken.progress import track

    keys = {check.key for check in done}
    todo = [(c, line) for c in configs for line in lines(c, plan) if line.key not in keys]
    with track("Checks", len(todo), show) as advance:
        for config, line in todo:
            yield checked(plain, config, plan, line)
            advance()


def _head(
    plain: LLM, model: str, plan: Plan, methods: Any, configs: list[dict[str, Any]]
) -> dict[str, Any]:
    """The head of a certificate: what is checked; only an equal one is resumed, see `_identity`.

    configs: those that name files."""
    import hashlib

    from foretoken.bench.measure.environment import environment
    from foretoken.bench.run.contents import contents

    return {
        "environment": environment(),
        "model": model,
        "implementation": type(plain.model).__name__,
        "dtype": str(plain.model.dtype).removeprefix("torch."),
        "backend": plain.model.backend,
        "device": str(plain.model.device),
        "methods": methods,
        **contents(model, configs),
        "prompts": len(plan.prompts),
        "max_tokens": plan.max_tokens,
        "samples": plan.samples,
        "plan_sha256": hashlib.sha256(repr(plan).encode()).hexdigest(),
    }


def _identity(head: dict[str, Any]) -> dict[str, Any]:
    """What must be equal for a certificate to be resumed, in JSON's types."""
    identity = json.loads(json.dumps(head))
    environment = identity.pop("environment")
    return {**identity, **{key: environment[key] for key in _CODE}}


def _read_checks(out: Path | None, head: dict[str, Any]) -> list[Check]:
    """The checks that `out` holds. Raises `ForetokenError` for another certificate's."""
    from foretoken.bench.run.resume import check_same
    from foretoken.certify import Check
    from foretoken.files import read_json

    if out is None or not out.exists():
        return []
    try:
        record = read_json(out, "a certificate")
        checks = [Check(**check) for check in record.pop("checks")]
        before = _identity(record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForetokenError(f"{out} is no certificate; give another --out.") from error
    check_same(out, before, _identity(head))
    return checks


def _record(head: dict[str, Any], checks: list[Check]) -> dict[str, Any]:
    return {**head, "checks": [check.data() for check in checks]}


def _save(out: Path, record: dict[str, Any]) -> None:
    from foretoken.files import write_file

    write_file(out, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _table(checks: list[Check]) -> None:
    from rich.text import Text

    heads = ("method", "check", "cell", "outcome", "compared", "p", "first difference")
    shown = output.table(*heads, whole=("outcome", "p"))
    for check in checks:
        colour = _COLOURS[check.outcome]
        shown.add_row(
            check.method,
            check.check,
            check.cell,
            Text(check.outcome.replace("_", " "), colour),
            check.compared,
            "" if check.p_value is None else f"{check.p_value:.2g}",
            _difference(check),
        )
    console = output.console()
    console.print(shown)
    failed = sum(check.outcome == "failed" for check in checks)
    console.print(f"{len(checks)} checks, {failed} failed.")


def _difference(check: Check) -> str:
    if check.place is None:
        return ""
    gap = "" if check.gap is None else f", gap {check.gap:.2g}"
    return f"token {check.place}{gap}"

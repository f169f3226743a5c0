"""Which methods `foretoken bench` measures, and what each of them drafts with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretoken.cli.bench_options import BenchOptions
from foretoken.cli.options import BUNDLED_DRAFTS, ModelOptions
from foretoken.errors import ForetokenError, one_line, shown

if TYPE_CHECKING:
    from foretoken.bench.plan import Configs

ALL = "all"
"""The name that stands for every method that can be built."""


@dataclass(frozen=True)
class Drafts:
    """What the methods of one target draft with.

    small: the draft model of all that take one. named: a method, or a part of methods -> its own,
    as the user gave it. bundled: the same of the bundled drafters that were trained for the target.
    """

    small: str | None
    named: Mapping[str, str]
    bundled: Mapping[str, str]


def drafts(given: str | None, models: Seq[str]) -> list[Drafts]:
    """Each model's drafters. given: --draft-model, a model for all or one for each, and NAME=MODEL
    for the methods and parts of this name; the bundled target has bundled ones.

    Raises `ForetokenError` for a NAME that no method has, and where the models are too few.
    """
    small: list[str | None] = []
    named: dict[str, str] = {}
    for item in names(given or ""):
        name, sign, model = item.partition("=")
        if not sign or Path(item).exists():
            small.append(item)
        else:
            named[_method_of(item, name.strip(), model.strip())] = model.strip()
    if not small:
        small = [BUNDLED_DRAFTS.get(model) for model in models]
    elif len(small) not in (1, len(models)):
        raise ForetokenError(
            f"--draft-model has {len(small)} draft models for {len(models)} models; give one, "
            "or one each."
        )
    each = small * len(models) if len(small) == 1 else small
    return [
        Drafts(draft, named, bundled_drafters(model))
        for model, draft in zip(models, each, strict=True)
    ]


def _method_of(item: str, name: str, model: str) -> str:
    """The method or part that NAME=MODEL is for, without aliases. Raises `ForetokenError` for a
    name that none has or that drafts with no model, and where no model is named."""
    from foretoken.config import options_of
    from foretoken.registry import ALIASES

    try:
        drafts_with_a_model = "model" in options_of(name)
    except ForetokenError as error:
        raise ForetokenError(f"--draft-model {shown(item)}: {error}") from error
    if not drafts_with_a_model:
        raise ForetokenError(
            f"--draft-model names a model for {shown(name)}, which drafts with none; leave it out."
        )
    if not model:
        raise ForetokenError(f"--draft-model {shown(item)} names no model; write NAME=MODEL.")
    return ALIASES.get(name, name)


def bundled_drafters(model: str) -> dict[str, str]:
    """The rows of the method table whose weights are bundled for this target -> their name."""
    from foretoken import zoo
    from foretoken.methods import METHODS
    from foretoken.registry import checkpoint_method
    from foretoken.trainable.checkpoint import method_of, read_config

    made: dict[str, str] = {}
    for name in zoo.names():
        try:
            if read_config(zoo.path(name)).get("target_name") == model:
                made[method_of(zoo.path(name))] = name
        except ForetokenError:  # a language model
            continue
    trained = [row for row in METHODS.values() if row.trained] if made else []
    read = {row.name: checkpoint_method(row.drafter) for row in trained}
    return {row: made[method] for row, method in read.items() if method in made}


def configs(
    settings: BenchOptions, running: ModelOptions, own: Drafts, inflated: bool
) -> tuple[Configs, dict[str, str]]:
    """The methods' configs by label, and why others are left out. inflated: the target's cost is
    blown up, so that weights that were trained for it as it is don't fit."""
    from foretoken.bench.plan import every_method, method_config
    from foretoken.bench.record import BASELINE
    from foretoken.config import build
    from foretoken.tuned import resolve_tuned

    tokens, reasons = settings.num_speculative_tokens, dict[str, str]()
    models = own.named if inflated else {**own.bundled, **own.named}
    if settings.methods == ALL:
        found, reasons = every_method(own.small, tokens, models)
    else:
        asked = names(settings.methods)
        found = {name: method_config(name, own.small, tokens, models) for name in asked}
    _check_used(own.named, [*found], inflated)
    found.pop(BASELINE, None)  # it is always there
    found |= _own_configs(settings.method_config)
    if config := _with_single_options(running.given_config(), own.small, tokens, models):
        found[build(config).name] = config
    # What a name stands for now: a run is resumed with these options, whatever its file says then.
    found = {label: resolve_tuned(config) for label, config in found.items()}
    if BASELINE in found:
        raise ForetokenError(f"{BASELINE} is plain decoding; give your method another label.")
    for config in found.values():
        build(config)
    return found, {name: why for name, why in reasons.items() if name not in found}


def _with_single_options(
    config: dict[str, Any], small: str | None, tokens: int | None, models: Mapping[str, str]
) -> dict[str, Any]:
    """-sc's config with what the single options say of its method: the length wins over its own,
    as the draft model of all methods doesn't."""
    from foretoken.bench.plan import method_config
    from foretoken.registry import replaced

    if not isinstance(method := config.get("method"), str):
        return config
    length = method_config(method, None, tokens)
    return replaced(replaced(method_config(method, small, None, models), config), length)


def _check_used(named: Mapping[str, str], methods: Seq[str], inflated: bool) -> None:
    """Raise `ForetokenError` for a model of a method that isn't measured, or that doesn't fit."""
    from foretoken.bench.plan import TUNED
    from foretoken.config import needs_of, parse
    from foretoken.methods import Need
    from foretoken.registry import ALIASES

    parts = {part for name in methods if not name.startswith(TUNED) for part in parse(name).parts}
    measured = {ALIASES.get(name, name) for name in (*parts, *methods)}
    for name in named:
        if name not in measured:
            raise ForetokenError(
                f"--draft-model names a model for {name!r}, which is not measured; add it to "
                "--methods, or leave the model out."
            )
        if inflated and Need.WEIGHTS in needs_of(name):
            raise ForetokenError(
                f"The weights of {name!r} are of the target as it is, and --inflate makes it "
                "wider; leave one of the two out."
            )


def _own_configs(settings: str | None) -> Configs:
    """--method-config, from JSON or from a file of JSON or YAML."""
    import yaml

    if settings is None:
        return {}
    try:
        here = settings.lstrip().startswith("{")
        read = _json_or_yaml(settings if here else Path(settings).read_text("utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ForetokenError(f"--method-config can't be read: {one_line(error)}.") from error
    if not isinstance(read, dict) or not all(isinstance(x, dict) for x in read.values()):
        raise ForetokenError(
            '--method-config must map labels to objects, e.g. {"mine": {"method": "pld"}}.'
        )
    return {str(label): dict(config) for label, config in read.items()}


def _json_or_yaml(text: str) -> Any:
    """What a text holds: as JSON, of which YAML takes 1e-3 for a text and refuses tabs, else as
    YAML."""
    import yaml

    try:
        return json.loads(text)
    except ValueError:
        return yaml.safe_load(text)


def names(text: str) -> list[str]:
    """The words of a list by comma, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))

"""The method table, and nothing else: a method is a named point on the axes.

drafter × length rule × tree shape × verifier. The same table prints in the terminal and in the
documentation and drives the tests: what it claims for a method is tested. A drafter needs no row
here to be used; it gets one when the combination deserves a name.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foretoken.errors import ForetokenError, unknown
from foretoken.protocols import Drafter, Verifier


@dataclass(frozen=True)
class Method:
    """One row. `drafter` and `verifier` are file names in their packages; `options` defaults."""

    name: str
    drafter: str
    length: str
    tree: str
    verifier: str
    lossless: bool
    trained: bool
    paper: str
    options: Mapping[str, Any] = field(default_factory=dict)


METHODS: dict[str, Method] = {
    row.name: row
    for row in (
        Method("autoregressive", "nothing", "–", "–", "target_only", True, False, "–"),
        Method("sps", "small_lm", "fixed or adaptive", "chain", "speculative", True, False,
               "Leviathan et al. 2023; Chen et al. 2023"),
        Method("pld", "prompt_lookup", "fixed", "chain", "target_only", True, False,
               "Saxena 2023; Yang et al. 2023 (LLMA)"),
    )
}  # fmt: skip

ALIASES = {"ngram": "pld", "draft_model": "sps", "prompt_lookup": "pld", "none": "autoregressive"}
"""Names of other libraries for the same method."""

OPTION_ALIASES = {
    "num_assistant_tokens": "num_speculative_tokens",
    "prompt_lookup_num_tokens": "num_speculative_tokens",
    "max_matching_ngram_size": "prompt_lookup_max",
    "assistant_model": "model",
    "draft_model": "model",
}
"""Names of other libraries for the same option."""


def build(config: Mapping[str, Any] | None) -> tuple[Drafter, Verifier, str]:
    """Drafter, verifier and the method's name from a `speculative_config`.

    `method` is a row's name or alias, a drafter's file name, "package.module:Class", or a drafter
    object. `verifier` overrides the row's rule. All other keys are the drafter's options.
    """
    options = dict(config or {"method": "autoregressive"})
    method = options.pop("method", None) or _guess(options)
    verifier = options.pop("verifier", None)
    if not isinstance(method, str):
        drafter: Drafter = method
        if options:
            raise ForetokenError(
                f"The method is a {type(drafter).__name__} object, so {', '.join(options)} would "
                "be ignored; set its fields instead."
            )
        rule = verifier or _default_verifier(drafter)
        return drafter, _verifier(rule), type(drafter).__name__
    name = ALIASES.get(method, method)
    row = METHODS.get(name)
    if row is None and name not in drafter_names() and ":" not in name:
        raise unknown("method", method, [*METHODS, *ALIASES, *drafter_names()])
    given = {**(row.options if row else {}), **options}
    drafter = create(drafter_class(row.drafter if row else name), name, given)
    rule = verifier or (row.verifier if row else _default_verifier(drafter))
    return drafter, _verifier(rule), name


def _guess(options: Mapping[str, Any]) -> str:
    """As in vLLM: a config that names a draft model and no method means that model drafts."""
    if "model" in options:
        return "sps"
    raise ForetokenError(
        'speculative_config names no method; e.g. {"method": "pld"} or '
        '{"method": "sps", "model": "folder-or-hub-id"}.'
    )


def create(cls: type[Any], name: str, options: Mapping[str, Any]) -> Drafter:
    """The drafter with its options checked by name."""
    known = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    given: dict[str, Any] = {}
    for key, value in options.items():
        own = key if key in known else OPTION_ALIASES.get(key, key)
        if own not in known:
            raise unknown(f"option of method {name!r}", key, known or ["(it has none)"])
        given[own] = value
    try:
        drafter: Drafter = cls(**given)
    except TypeError as error:
        raise ForetokenError(f"Method {name!r} can't be built: {error}.") from error
    return drafter


def drafter_names() -> list[str]:
    """The file names in `foretoken.drafters`."""
    return _modules("foretoken.drafters")


def verifier_names() -> list[str]:
    """The file names in `foretoken.verify`."""
    return _modules("foretoken.verify")


def _modules(package: str) -> list[str]:
    folder = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(folder))


def drafter_class(name: str) -> type[Any]:
    """The class of a drafter by file name, or of an outsider by "package.module:Class"."""
    return _outsider("Drafter", name) if ":" in name else _only_class("foretoken.drafters", name)


def _outsider(what: str, name: str) -> type[Any]:
    """A class of another package, by "package.module:Class"."""
    module, _, attribute = name.partition(":")
    try:
        found: type[Any] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ForetokenError(
            f"{what} {name!r} can't be imported ({error}); give package.module:Class."
        ) from error
    return found


def verifier_class(name: str) -> type[Any]:
    """The class of an acceptance rule by file name, or of an outsider by "package.module:Class"."""
    return _outsider("Verifier", name) if ":" in name else _only_class("foretoken.verify", name)


def _only_class(package: str, name: str) -> type[Any]:
    """The class whose name is the file's name without underscores, in any case."""
    module = importlib.import_module(f"{package}.{name}")
    wanted = name.replace("_", "")
    for attribute, value in vars(module).items():
        if isinstance(value, type) and attribute.lower() == wanted:
            return value
    raise ForetokenError(f"{package}.{name} has no class named like its file.")


def _verifier(rule: str | Verifier) -> Verifier:
    if not isinstance(rule, str):
        return rule
    if rule not in verifier_names() and ":" not in rule:
        raise unknown("verifier", rule, verifier_names())
    built: Verifier = verifier_class(rule)()
    return built


def _default_verifier(drafter: Drafter) -> str:
    """The exact rule for what the drafter makes: chosen nodes keep plain decoding's very tokens."""
    from foretoken.tree import Kind

    return "target_only" if drafter.kinds <= {Kind.CHOSEN, Kind.AUXILIARY} else "speculative"

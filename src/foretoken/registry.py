"""Drafters, acceptance rules and wrapped targets by name: a file's class, or an outsider's; and the
names that other libraries have for methods and options. An installed package gives its drafters
names by entry points of the group "foretoken.drafters"."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Mapping
from functools import cache
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from foretoken.errors import ForetokenError, one_line, shown, unknown
from foretoken.errors.values import typed
from foretoken.protocols import Verifier

BASELINE = "autoregressive"
"""The method that drafts nothing."""

ALIASES = {
    "ngram": "pld",
    "draft_model": "sps",
    "prompt_lookup": "pld",
    "none": BASELINE,
    "deepseek_mtp": "mtp",
    "mimo_mtp": "mtp",
    "qwen3_next_mtp": "mtp",
}
"""Names of other libraries for the same method."""

_LOOKUP = "prompt_lookup_num_tokens"
OPTION_ALIASES = {
    "num_assistant_tokens": "num_speculative_tokens",
    _LOOKUP: "num_speculative_tokens",
    "max_matching_ngram_size": "prompt_lookup_max",
    "suffix_decoding_max_tree_depth": "max_tree_depth",
    "suffix_decoding_max_spec_factor": "max_spec_factor",
    "suffix_decoding_min_token_prob": "min_token_prob",
    "assistant_model": "model",
    "assistant_tokenizer": "tokenizer",
    "draft_model": "model",
}
"""Names of other libraries for the same option."""

FILES = ("model", "models", "checkpoint", "datastore", "corpus", "skip")
"""The options whose values name files of what drafts."""

LOADED_AS = ("draft_backend", "draft_vocab_size")
"""Options with which a draft model is loaded, in the order of `as_causal_lm`; one that is loaded
already takes none of them."""

FIELDS = {
    "num_speculative_tokens": ("depth",),
    "num_speculative_nodes": ("tree_nodes", "num_speculative_tokens"),
}
"""How long and how large a draft may be -> the fields that say so where a class has none of that
name; of several the first that it has."""


GROUP = "foretoken.drafters"
"""The group of entry points, name = "package.module:Class", that name drafters."""


class Installed(NamedTuple):
    """A drafter of an installed package. path: "package.module:Class". package: name and version of
    the distribution."""

    name: str
    path: str
    package: str


def installed_drafters() -> list[Installed]:
    """What installed packages offer, by name; nothing is imported. A name may stand there twice."""
    from importlib.metadata import entry_points  # which takes longer than all else here

    return sorted(
        Installed(
            point.name,
            point.value,
            f"{point.dist.name} {point.dist.version}" if point.dist else "an unnamed package",
        )
        for point in entry_points(group=GROUP)
    )


def drafter_names() -> list[str]:
    """The file names in `foretoken.drafters`."""
    return list(_modules("foretoken.drafters"))


def verifier_names() -> list[str]:
    """The file names in `foretoken.verify`."""
    return list(_modules("foretoken.verify"))


@cache
def _modules(package: str) -> tuple[str, ...]:
    folder = importlib.import_module(package).__path__
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folder) if not m.ispkg))


def drafter_class(name: str) -> type[Any]:
    """The class of a drafter by file name, or of an outsider by "package.module:Class" or by the
    name that its package gives it. Names of ours come first.

    Raises `ForetokenError` for one that can't be imported, and for a name that there isn't or that
    two packages give.
    """
    if ":" in name or name in drafter_names():
        return _class("Drafter", "foretoken.drafters", name)
    offered = installed_drafters()
    found = [drafter for drafter in offered if drafter.name == name]
    if not found:
        raise unknown("drafter", name, [*drafter_names(), *(own.name for own in offered)])
    if len(found) > 1:
        raise ForetokenError(
            f"Drafter {shown(name)} is offered by {' and by '.join(own.package for own in found)}; "
            f"choose one by package.module:Class, e.g. {found[0].path}."
        )
    [(_, path, package)] = found
    return _outsider(
        f"Drafter {shown(name)} of {package}, {path},", path, "install another version of it"
    )


def checkpoint_method(name: str) -> str:
    """The method whose checkpoints a drafter with trained weights reads, by file name."""
    cls: Any = drafter_class(name)
    return str(cls.module.method)


def _outsider(what: str, path: str, remedy: str = "give package.module:Class") -> type[Any]:
    """A class of another package, by "package.module:Class". what, remedy: for the error."""
    module, _, attribute = path.partition(":")
    try:
        cls: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # of the module's own code, any
        raise ForetokenError(f"{what} can't be imported ({one_line(error)}); {remedy}.") from error
    if not isinstance(cls, type):
        raise ForetokenError(f"{what} is no class; {remedy}.")
    return cls


def verifier_class(name: str) -> type[Any]:
    """The class of an acceptance rule by file name, or of an outsider by "package.module:Class"."""
    return _class("Verifier", "foretoken.verify", name)


def build_verifier(rule: str | Verifier) -> Verifier:
    """An acceptance rule by file name or "package.module:Class", or one that is made already."""
    if isinstance(rule, str) and rule not in verifier_names() and ":" not in rule:
        raise unknown("verifier", rule, verifier_names())
    verifier: Verifier = verifier_class(rule)() if isinstance(rule, str) else rule
    if isinstance(verifier, type):
        raise ForetokenError(f"Verifier {verifier.__name__} is a class; make an object of it.")
    missing = [name for name in Verifier.__annotations__ if not hasattr(verifier, name)]
    if missing:
        raise ForetokenError(
            f"Verifier {type(verifier).__name__} doesn't declare {', '.join(missing)}; derive it "
            "from foretoken.protocols.Verifier, which has the defaults."
        )
    return verifier


def target_class(name: str) -> type[Any]:
    """The class of a target's wrapper by file name in `foretoken.models`, or of an outsider by
    "package.module:Class": built of a method's options, called with the target."""
    return _class("Target", "foretoken.models", name)


def typed_options(cls: type[Any], method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A method's options as the types that its class's fields declare.

    Raises `ForetokenError` for a value of another type; ranges are checked by the class. A field
    whose annotation can't be resolved, in an outsider's class, takes anything.
    """
    try:
        hints = get_type_hints(cls)
    except (NameError, TypeError):
        hints = {}
    return {
        key: typed(f"Option {key} of method {method!r}", value, hints.get(key, Any))
        for key, value in options.items()
    }


def _class(what: str, package: str, name: str) -> type[Any]:
    """A class of a file in `package`, or of an outsider by "package.module:Class". what: for the
    error."""
    if ":" in name:
        return _outsider(f"{what} {shown(name)}", name)
    return _only_class(package, name)


def _only_class(package: str, name: str) -> type[Any]:
    """The class whose name is the file's name without underscores, in any case."""
    module = importlib.import_module(f"{package}.{name}")
    wanted = name.replace("_", "")
    for attribute, value in vars(module).items():
        if isinstance(value, type) and attribute.lower() == wanted:
            return value
    raise ForetokenError(f"{package}.{name} has no class named like its file.")


def option_name(key: str, fields: Collection[str]) -> str:
    """foretoken's name of an option; `key` may be another library's."""
    if key in fields:
        return key
    if key == _LOOKUP and "prompt_lookup_max" not in fields:
        return key  # the length of prompt lookup's drafts, and of no other's
    name = OPTION_ALIASES.get(key, key)
    return next((field for field in (name, *FIELDS.get(name, ())) if field in fields), name)


def by_fields(method: str, given: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """A method's options by the names of its class's fields; others keep the names they have.

    Raises `ForetokenError` for one that is given by two names, unless they have the same value.
    """
    names: dict[str, str] = {}  # a field -> the name by which it is given
    for key, value in given.items():
        field = option_name(key, fields)
        first = names.setdefault(field if field in fields else key, key)
        if first != key and not _same(given[first], value):
            raise ForetokenError(
                f"{first} and {key} are two names of one option of method {method!r}; give it "
                f"once, as {field}."
            )
    return {field: given[key] for field, key in names.items()}


def of_part(
    part: str, shared: Mapping[str, Any], own: Mapping[str, Any], fields: Collection[str]
) -> dict[str, Any]:
    """A part's options by its fields' names: its own before those that all parts share, and of
    these the ones that name a field before those that stand for one (`FIELDS`)."""
    exact = {k: v for k, v in shared.items() if option_name(k, fields) == OPTION_ALIASES.get(k, k)}
    others = {k: v for k, v in shared.items() if k not in exact}
    layers = [by_fields(part, given, fields) for given in (others, exact, own)]
    return {**layers[0], **layers[1], **layers[2]}


def _same(one: Any, other: Any) -> bool:
    """Whether two values are one; of an array or a model that is asked of the object alone."""
    plain = isinstance(one, str | Path | Number) and isinstance(other, str | Path | Number)
    return one is other or (plain and bool(one == other))


def replaced(options: Mapping[str, Any], by: Mapping[str, Any]) -> dict[str, Any]:
    """Options with others in their place, whichever names these have. `_LOOKUP` doesn't stand for
    the length of all drafts, and a mapping is a part's, which may be called like an option."""
    given = {
        OPTION_ALIASES.get(key, key)
        for key, value in by.items()
        if key != _LOOKUP and not isinstance(value, Mapping)
    }
    kept = {
        key: value
        for key, value in options.items()
        if isinstance(value, Mapping) or OPTION_ALIASES.get(key, key) not in given
    }
    return {**kept, **by}


def unknown_option(method: str, key: str, names: Collection[str]) -> ForetokenError:
    """The error for an option that a method doesn't have. names: those that it has."""
    if OPTION_ALIASES.get(key, key) == "model":
        return ForetokenError(
            f"Method {method!r} drafts without a model, so {shown(key)} would be ignored; leave it "
            "out (on the command line: --draft-model), or use a method that drafts with one: 'sps'."
        )
    if not names:
        return ForetokenError(f"Method {method!r} has no options; leave {shown(key)} out.")
    return unknown(f"option of method {method!r}", key, names)


def no_length(method: str) -> ForetokenError:
    """The error for a draft's length where a method has none."""
    return ForetokenError(
        f"num_speculative_tokens is the length of a draft, and method {method!r} drafts nothing, "
        "so it has none; leave it out."
    )

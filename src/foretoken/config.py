"""Builds what a `speculative_config` describes: a drafter, an acceptance rule, a wrapped target.

`method` is a name of the method table or an alias of it, a drafter's file name or the name that an
installed package gives its own, "package.module:Class", or a drafter object. A name can be made of
others:

    "pld+sps"          takes the draft that promises most
    "pld|sps"          takes all drafts, in one tree
    "auto:pld+sps"     (or "auto:pld,sps") takes at every step what pays most by measured cost, or
                       drafts nothing; plain "auto" chooses among the methods whose rows join it
                       and whose needs the options meet
    "online:medusa"    learns while it serves; plain "online" is "online:sps"

An option of such a method goes to every part that has it, and a mapping under a part's name to that
part alone. The acceptance rule is the exact one for the parts' drafts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Protocol

from foretoken.access import check_levels
from foretoken.errors import ForetokenError, shown, unknown
from foretoken.errors.vllm_names import CONFIG_NAMES, without_vllm_names
from foretoken.length import check_one_length
from foretoken.methods import METHODS, Method, Need
from foretoken.models.load import find
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter, Target, Verifier
from foretoken.registry import (
    ALIASES,
    BASELINE,
    OPTION_ALIASES,
    build_verifier,
    by_fields,
    drafter_class,
    drafter_names,
    installed_drafters,
    no_length,
    of_part,
    option_name,
    target_class,
    typed_options,
    unknown_option,
)
from foretoken.trainable.checkpoint import method_of
from foretoken.tuned import resolve_tuned

AUTO = "auto"
"""The method that chooses among others."""

ONLINE = "online"
"""The method whose drafter learns while it serves."""

COMBINERS = {"+": "either", "|": "merged"}
"""The sign between the parts' names -> the drafter that wraps the parts."""

_INTERNAL = {"drafters", "names", "lenient", "costs"}
"""Fields that `build` fills in; they are never suggested."""

_LENGTH = "num_speculative_tokens"
_MEETS = {
    "model": Need.DRAFT_MODEL | Need.WEIGHTS,
    "models": Need.DRAFT_MODEL,
    "datastore": Need.DATASTORE,
}
"""An option -> the needs that it meets."""


class TargetWrapper(Protocol):
    """Wraps a target in one that scores differently. levels: the access that this needs."""

    @property
    def levels(self) -> str: ...

    def __call__(self, target: ModelTarget) -> Target: ...


@dataclass(frozen=True)
class BuiltMethod:
    """What a `speculative_config` describes. wrap_target: of a method that does so."""

    drafter: Drafter
    verifier: Verifier
    name: str
    wrap_target: TargetWrapper | None = None

    @property
    def levels(self) -> frozenset[str]:
        """The levels of access to the target that the method needs."""
        wrapper = "" if self.wrap_target is None else self.wrap_target.levels
        return frozenset(self.drafter.wants.levels + wrapper)

    def wrapped(self, target: ModelTarget) -> Target:
        """The target, wrapped if the method does so. Raises `ForetokenError` for one that can't
        give what the wrapper needs."""
        if self.wrap_target is None:
            return target
        check_levels(f"Method {self.name}", self.wrap_target.levels, target.levels)
        return self.wrap_target(target)


@dataclass(frozen=True)
class MethodName:
    """A parsed method name. combiner: the file name of the drafter that wraps the parts' drafters;
    None for a single method."""

    combiner: str | None
    parts: tuple[str, ...]


def build(config: Mapping[str, Any] | None) -> BuiltMethod:
    """Build what a `speculative_config` describes; None decodes plainly. Raises `ForetokenError`
    for an unknown name or option, and for a method that can't be built so.

    "verifier" overrides the method's acceptance rule. "tuned" names a result of `foretoken tune`,
    by path or name; other keys override its options. All other keys are the method's options."""
    if config is not None and not isinstance(config, Mapping):
        raise ForetokenError(
            f'speculative_config is {shown(config)}; give a mapping, e.g. {{"method": "pld"}}.'
        )
    given = resolve_tuned({"method": BASELINE} if config is None else config)
    options = without_vllm_names(given, CONFIG_NAMES, "speculative_config")
    method, rule = options.pop("method", None), options.pop("verifier", None)
    if method is None:
        method = guessed_method(options)
    if not isinstance(method, str):
        built = _from_object(method, options)
    elif parse(method).combiner is None:
        built = _single(method, options)
    else:
        built = _combined(method, options)
    return built if rule is None else dataclasses.replace(built, verifier=build_verifier(rule))


def parse(method: str) -> MethodName:
    """Parse a method's name. Raises `ForetokenError` where it mixes "+" and "|"."""
    prefix, _, named = method.partition(":")
    if prefix == AUTO:
        parts = named.replace("+", ",").split(",") if method != AUTO else []
        return MethodName(AUTO, tuple(part.strip() for part in parts))
    if prefix == ONLINE:
        return MethodName(ONLINE, (named or "sps",))
    marks = [mark for mark in COMBINERS if mark in method]
    if not marks:
        return MethodName(None, (method,))
    if len(marks) > 1:
        raise ForetokenError(f"Method {method!r} mixes '+' and '|'; put one of them between parts.")
    parts = method.split(marks[0])
    return MethodName(COMBINERS[marks[0]], tuple(part.strip() for part in parts))


def row_of(name: str) -> Method | None:
    """The table's row of a single method, by its name or an alias."""
    return METHODS.get(ALIASES.get(name, name))


def auto_parts(method: str, options: Collection[str]) -> list[str]:
    """The parts that "auto:…" names; of "auto" all that join it, where the options meet their
    needs."""
    if method != AUTO:
        return list(parse(method).parts)
    met = _met(options)
    return [row.name for row in METHODS.values() if row.joins_auto is not None and row.needs in met]


def needs_of(method: str) -> Need:
    """What a method, or any part of it, can't be built without."""
    return reduce(or_, map(_needs_of_part, parse(method).parts), Need.NOTHING)


def unmet_needs(config: Mapping[str, Any]) -> Need:
    """The needs of a config's method that none of its options meets; parts' options count too."""
    nested = [key for value in config.values() if isinstance(value, Mapping) for key in value]
    return needs_of(str(config["method"])) & ~_met([*config, *nested])


def options_of(method: str) -> set[str]:
    """The options that a method takes, those of its parts included."""
    name = parse(method)
    parts = auto_parts(method, ["model"]) if name.combiner == AUTO else name.parts
    classes = [_part_class(part) for part in parts]
    if name.combiner is not None:
        classes.append(drafter_class(name.combiner))
    return {option for cls in classes for option in _fields(cls)}


def create_drafter(cls: type[Any], name: str, options: Mapping[str, Any]) -> Drafter:
    """A drafter of this class; its options are checked by name."""
    drafter = _create(cls, name, options)
    if not isinstance(drafter, Drafter):
        raise _no_drafter(f"Method {name!r} makes {shown(drafter)}")
    return drafter


def guessed_method(options: Mapping[str, Any]) -> str:
    """As in vLLM, a config without a method means that of the trained drafter that it names, or
    `sps` with any other model."""
    source = options.get("model")
    if isinstance(source, (str, Path)):
        with suppress(ForetokenError):
            return method_of(find(source))
    if source is not None:
        return "sps"
    given = ", ".join(map(str, options)) or "nothing"
    raise ForetokenError(
        f'speculative_config has {given} and names no method; e.g. {{"method": "pld"}} or '
        '{"method": "sps", "model": "folder-or-hub-id"}.'
    )


def _no_drafter(given: str) -> ForetokenError:
    return ForetokenError(
        f"{given}; give a name from `foretoken methods`, or a drafter object, derived from "
        "foretoken.protocols.BaseDrafter (of a class, make one)."
    )


def _from_object(drafter: Any, options: Mapping[str, Any]) -> BuiltMethod:
    if not isinstance(drafter, Drafter) or isinstance(drafter, type):
        raise _no_drafter(f"The method is {shown(drafter)}")
    name = type(drafter).__name__
    if options:
        raise ForetokenError(
            f"The method is a {name} object, so {', '.join(options)} would be ignored; set its "
            "fields instead."
        )
    return BuiltMethod(drafter, _exact_verifier(drafter), name)


def _refuse_ignored(method: str, options: Collection[str]) -> None:
    """Raise `ForetokenError` for the parts and their names, where the method's name says both."""
    wrong = {"names", "lenient"} if "drafters" not in options else set[str]()
    wrong |= {"drafters"} if method not in (AUTO, ONLINE) else set[str]()
    for option in sorted(wrong.intersection(options)):
        raise ForetokenError(
            f"The parts of method {method!r} follow from its name, so option {option} would be "
            "ignored; name the parts in the method, or give drafters to plain 'auto'."
        )


def _single(method: str, options: Mapping[str, Any]) -> BuiltMethod:
    """A method that is not made of others."""
    name, row, cls = ALIASES.get(method, method), row_of(method), _part_class(method)
    options = by_fields(method, options, _fields(cls))
    options = {**_row_options(method, None, options), **options}
    if row is None:
        drafter = create_drafter(cls, method, options)
        return BuiltMethod(drafter, _exact_verifier(drafter), name)
    made, verifier = _create(cls, method, options), build_verifier(row.verifier)
    if row.target is None:
        return BuiltMethod(made, verifier, name)
    return BuiltMethod(drafter_class(row.drafter)(), verifier, name, made)


def _combined(method: str, options: Mapping[str, Any]) -> BuiltMethod:
    """A drafter that is made of other drafters, which a user may give as objects."""
    combiner = parse(method).combiner
    assert combiner is not None
    _refuse_ignored(method, options)
    if "drafters" not in options:
        options = _with_drafters(method, combiner, options)
    drafter = create_drafter(drafter_class(combiner), method, options)
    return BuiltMethod(drafter, _exact_verifier(drafter), method)


def _with_drafters(method: str, combiner: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The combiner's options, with the parts' drafters among them."""
    parts = auto_parts(method, options) if combiner == AUTO else list(parse(method).parts)
    _check_parts(method, parts)
    wrapper, added = drafter_class(combiner), dict[str, Any]()
    classes = {part: _part_class(part) for part in parts}
    takers = {part: _fields(cls) for part, cls in {**classes, combiner: wrapper}.items()}
    deep = {part for part, cls in classes.items() if combiner == AUTO and _has_own_depth(cls)}
    shares = _shared_out(method, options, takers, deep)
    if combiner == AUTO:
        added = {"names": parts, "lenient": method == AUTO}
        for part in classes.keys() - deep:
            shares[part].setdefault(_LENGTH, wrapper.num_speculative_tokens)
    drafters = [
        create_drafter(cls, part, {**_row_options(part, combiner, shares[part]), **shares[part]})
        for part, cls in classes.items()
    ]
    return {**shares[combiner], **added, "drafters": drafters}


def _has_own_depth(cls: type[Any]) -> bool:
    """Whether its tree or checkpoint sets how deep drafts are, whatever `auto` limits them to."""
    return _LENGTH not in _fields(cls) or cls.__dataclass_fields__[_LENGTH].default is None


def _check_parts(method: str, parts: Seq[str]) -> None:
    if len(set(parts)) < len(parts):
        raise ForetokenError(
            f"Method {method!r} names a part twice; name each part once (a method and its "
            "drafter's file name count as two)."
        )
    for part in parts:
        row = row_of(part)
        if row is not None and row.target is not None:
            others = [repr(other) for other in parts if other != part]
            raise ForetokenError(
                f"Method {part!r} wraps the target and drafts nothing, so it can't be joined with "
                f"{', '.join(others) or repr(parse(method).combiner)}; use it alone."
            )


def _shared_out(
    method: str, options: Mapping[str, Any], takers: Mapping[str, list[str]], deep: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Each taker's options, those under its name first, where alone `deep` take a length."""
    taken_by: dict[str, dict[str, Any]] = {name: {} for name in takers}
    own = {k: v for k, v in options.items() if k in takers and isinstance(v, Mapping)}
    for key, value in ((k, v) for k, v in options.items() if k not in own):
        having = [name for name, fields in takers.items() if option_name(key, fields) in fields]
        if OPTION_ALIASES.get(key, key) == _LENGTH:
            having = [name for name in having if name not in deep]
        if not having:
            names = [field for fields in takers.values() for field in _public(fields)]
            raise unknown_option(method, key, [*filter(row_of, takers), *names])
        for name in having:
            taken_by[name][key] = value
    return {n: of_part(n, every, own.get(n, {}), takers[n]) for n, every in taken_by.items()}


def _row_options(name: str, combiner: str | None, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the method's row sets beside the options that are given, which are checked."""
    row = row_of(name)
    if combiner != AUTO:  # whose number of tokens bounds each part's draft
        check_one_length(given)
    own = row.options_beside(given) if row else {}
    in_auto = (row and combiner == AUTO and row.joins_auto) or {}
    return own if {*in_auto} & {*given} else {**own, **in_auto}


def _part_class(name: str) -> type[Any]:
    """The class that takes a single method's options: its drafter, or what wraps the target."""
    row = row_of(name)
    if row is not None:
        return target_class(row.target) if row.target else drafter_class(row.drafter)
    known = ":" in name or name in drafter_names()
    if not known and name not in (offered := [own.name for own in installed_drafters()]):
        raise unknown("method", name, [*METHODS, *offered])
    return drafter_class(name)


def _needs_of_part(name: str) -> Need:
    """A row's needs; of a drafter's file name, those of the first method that uses the drafter."""
    row = row_of(name)
    rows = [row] if row else [row for row in METHODS.values() if row.drafter == name]
    return rows[0].needs if rows else Need.NOTHING


def _met(options: Collection[str]) -> Need:
    """The needs that options with these names meet."""
    met = (_MEETS.get(OPTION_ALIASES.get(key, key), Need.NOTHING) for key in options)
    return reduce(or_, met, Need.NOTHING)


def _create(cls: type[Any], name: str, options: Mapping[str, Any]) -> Any:
    """An object of a method's class; its options are checked by name and type."""
    fields = _fields(cls)
    arguments = by_fields(name, options, fields)
    for key in arguments:
        if key not in fields:
            length = option_name(key, fields) == _LENGTH
            raise no_length(name) if length else unknown_option(name, key, _public(fields))
    try:
        return cls(**typed_options(cls, name, arguments))
    except TypeError as error:
        raise ForetokenError(f"Method {name!r} can't be built: {error}.") from error


def _fields(cls: type[Any]) -> list[str]:
    """The options of a method's class."""
    return [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []


def _public(fields: Collection[str]) -> list[str]:
    """The fields that users set."""
    return [name for name in fields if name not in _INTERNAL]


def _exact_verifier(drafter: Drafter) -> Verifier:
    """The exact rule for the drafter's nodes: the first that takes them. The first of all is the
    one that keeps plain decoding's tokens at a seed."""
    for name in ("target_only", "speculative"):
        rule = build_verifier(name)
        if drafter.kinds <= rule.kinds and (rule.trees or not drafter.trees):
            return rule
    return build_verifier("multi_candidate")

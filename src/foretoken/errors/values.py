"""Values as their declared types: what is given becomes Python's own, or one sentence refuses it.

Only what annotations of options use is known: bool, int, float, str, Path, None, lists, mappings,
callables, classes, and unions of these. Anything else passes as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

import numpy as np
import torch

from foretoken.errors import ForetokenError, shown

_TEXTS = (str, bytes, bytearray, memoryview)


def typed(name: str, value: Any, hint: Any) -> Any:
    """`value` as the type that `hint` declares: numbers of numpy and whole floats become Python's,
    arrays and lists tuples. Raises `ForetokenError` for another type, NaN and infinity."""
    try:
        return _convert(value, hint)
    except Exception as error:  # of a user's own class, or of an array without data, any
        raise ForetokenError(f"{name} is {shown(value)}; it must be {_words(hint)}.") from error


def check_range(low: float, high: float, /, **options: float | None) -> None:
    """Raise `ForetokenError` for an option outside of [low, high]; None passes."""
    for name, value in options.items():
        if value is not None and not low <= value <= high:
            bounds = f"at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
            raise ForetokenError(f"{name} is {shown(value)}; it must be {bounds}.")


def check_tokens(num_speculative_tokens: int, most: int) -> None:
    """Raise `ForetokenError` for a draft of less than one token, or of more than `most`."""
    if num_speculative_tokens < 1:
        raise ForetokenError(
            f"num_speculative_tokens is {shown(num_speculative_tokens)}; it must be at least 1 "
            "(use method 'autoregressive' to draft nothing)."
        )
    check_range(1, most, num_speculative_tokens=num_speculative_tokens)


class _Type(NamedTuple):
    """What converts a value, given the type's arguments, and the type's words for one and many."""

    convert: Callable[[Any, Any], Any]
    one: str
    many: str


def _convert(value: Any, hint: Any) -> Any:
    known = _TYPES.get(get_origin(hint) or hint)
    if known is not None:
        return known.convert(value, get_args(hint))
    if hint is Any or not isinstance(hint, type):
        return value
    return _having(value, isinstance(value, hint) and not isinstance(value, type))


def _words(hint: Any, many: bool = False) -> str:
    if hint is Any:
        return "anything"
    origin, name = get_origin(hint) or hint, getattr(hint, "__name__", str(hint))
    known = _TYPES.get(origin)
    form = (known.many if many else known.one) if known else f"a {name}"
    if "{}" not in form:
        return form
    inside = many or origin not in (Union, UnionType)
    parts = [_words(part, inside) for part in get_args(hint) if part is not Ellipsis]
    if origin is Mapping:
        return form.format(" to ".join(parts))
    return form.format(" or ".join(dict.fromkeys(parts)))  # a pair of numbers are numbers


def _having(value: Any, fits: bool) -> Any:
    if not fits:
        raise TypeError
    return value


def _exact(kind: type) -> Callable[[Any, Any], Any]:
    return lambda value, _: _having(value, isinstance(value, kind))


def _text(value: Any, _: Any) -> str:
    return str.__str__(_having(value, isinstance(value, str)))


def _flag(value: Any, _: Any) -> bool:
    return bool(_having(value, isinstance(value, bool | np.bool_)))


def _whole(value: Any, _: Any) -> int:
    number = _number(value, _) if not isinstance(value, Integral) else value
    return int(_having(number, int(number) == number and not isinstance(value, bool)))


def _number(value: Any, _: Any) -> float:
    number = float(_having(value, isinstance(value, Real) and not isinstance(value, bool)))
    return float(_having(number, math.isfinite(number)))


def _list(value: Any, hints: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray | torch.Tensor):
        value = value.tolist()
    _having(value, isinstance(value, Sequence) and not isinstance(value, _TEXTS))
    if len(hints) == 2 and hints[1] is not Ellipsis:  # a pair
        return tuple(_convert(item, hint) for item, hint in zip(value, hints, strict=True))
    [hint, *_] = hints
    if hint in (int, str) and all(type(item) is hint for item in value):
        return tuple(value)  # texts may be long
    return tuple(_convert(item, hint) for item in value)


def _collection(value: Any, hints: Any) -> tuple[Any, ...]:
    return _list(tuple(value) if isinstance(value, Set) else value, hints)


def _mapping(value: Any, hints: Any) -> dict[Any, Any]:
    items = _having(value, isinstance(value, Mapping)).items()
    if all((type(key), type(item)) == hints for key, item in items):
        return dict(items)  # there may be many
    return {_convert(key, hints[0]): _convert(item, hints[1]) for key, item in items}


def _either(value: Any, hints: Any) -> Any:
    """The value as the first of these types that it fits; a float stays one where it may."""
    for hint in sorted(hints, key=lambda hint: hint is int and not isinstance(value, Integral)):
        try:
            return _convert(value, hint)
        except Exception:
            continue
    raise TypeError


_TYPES: dict[Any, _Type] = {
    bool: _Type(_flag, "True or False", "True or False"),
    int: _Type(_whole, "a whole number", "whole numbers"),
    float: _Type(_number, "a number", "numbers"),
    str: _Type(_text, "a text", "texts"),
    Path: _Type(_exact(Path), "a path", "paths"),
    NoneType: _Type(_exact(NoneType), "None", "None"),
    Collection: _Type(_collection, "a list of {}", "lists of {}"),
    Sequence: _Type(_list, "a list of {}", "lists of {}"),
    tuple: _Type(_list, "a list of {}", "lists of {}"),
    Mapping: _Type(_mapping, "a mapping of {}", "mappings of {}"),
    Callable: _Type(lambda value, _: _having(value, callable(value)), "a callable", "callables"),
    UnionType: _Type(_either, "{}", "{}"),
    Union: _Type(_either, "{}", "{}"),
}

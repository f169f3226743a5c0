"""Deep copies in which functions are copied too, with what they close over.

`copy.deepcopy` takes a function for a constant, so that copies of an object share what a function
in it remembers. Here its variables become variables of the copy: two functions that have one in
common have one in common there. What a class says of its copies (`__deepcopy__`, `__reduce_ex__`,
`copyreg`) is done as `copy.deepcopy` does it. Shared are classes, modules, and functions that a
module has under their names.
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from types import (
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
    NotImplementedType,
)
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import ref

T = TypeVar("T")

_CONSTANTS = frozenset(
    {NoneType, bool, int, float, complex, str, bytes, range, EllipsisType, NotImplementedType}
    | {CodeType, property, ref}
)


@runtime_checkable
class _Copying(Protocol):
    def __deepcopy__(self, memo: dict[int, Any]) -> Any: ...


@runtime_checkable
class _Restored(Protocol):
    def __setstate__(self, state: Any) -> None: ...


def deep_copy(thing: T) -> T:
    """A copy that shares nothing that can change. Raises what a class raises that has none."""
    copied: T = _Copies().of(thing)
    return copied


class _Copies:
    """Those of one call: what things have in common, their copies have in common."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}  # by the originals' ids, as `__deepcopy__` takes them
        self._originals: list[Any] = []  # which live as long as their ids are looked up

    def of(self, thing: Any) -> Any:
        """The copy of this thing, which may be itself."""
        if type(thing) in _CONSTANTS or isinstance(thing, type | ModuleType):
            return thing
        if id(thing) not in self._copies:
            self._note(thing, self._made(thing))
        return self._copies[id(thing)]

    def _note(self, thing: Any, made: Any) -> None:
        self._copies[id(thing)] = made
        self._originals.append(thing)

    def _made(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, MethodType):
            return self._method(thing)
        if type(thing) is tuple:
            return self._tuple(thing)
        if isinstance(thing, _Copying):
            return thing.__deepcopy__(self._copies)
        return self._rebuilt(thing)

    def _function(self, function: FunctionType) -> FunctionType:
        cells, defaults = function.__closure__ or (), function.__defaults__
        remembers = cells or defaults or function.__kwdefaults__ or vars(function)
        if not remembers or _is_named(function):
            return function
        new = [cell for cell in cells if id(cell) not in self._copies]
        for cell in new:
            self._note(cell, CellType())
        variables = tuple(self._copies[id(cell)] for cell in cells)
        made = FunctionType(
            function.__code__, function.__globals__, function.__name__, None, variables or None
        )
        self._note(function, made)  # which a variable of its own may hold
        for cell in new:
            for contents in _contents(cell):
                self._copies[id(cell)].cell_contents = self.of(contents)
        made.__defaults__, made.__kwdefaults__ = self.of(defaults), self.of(function.__kwdefaults__)
        made.__dict__.update(self.of(vars(function)))
        made.__qualname__ = function.__qualname__
        return made

    def _method(self, method: MethodType) -> MethodType:
        owner, function = method.__self__, method.__func__
        own = any(function is each for base in type(owner).__mro__ for each in vars(base).values())
        return MethodType(function if own else self.of(function), self.of(owner))

    def _tuple(self, thing: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = tuple(map(self.of, thing))
        if id(thing) in self._copies:  # as one of its parts holds it
            known: tuple[Any, ...] = self._copies[id(thing)]
            return known
        same = all(part is copied for part, copied in zip(thing, parts, strict=True))
        return thing if same else parts

    def _rebuilt(self, thing: Any) -> Any:
        reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(type(thing))
        told = thing.__reduce_ex__(4) if reduce is None else reduce(thing)
        if isinstance(told, str):  # the name under which it is there once
            return thing
        parts: list[Any] = [*told, None, None, None, None]
        make, given, state, items, pairs, restore = parts[:6]
        made = make(*map(self.of, given))
        self._note(thing, made)
        if state is not None:
            (restore or _restore)(made, self.of(state))
        for item in items or ():
            made.append(self.of(item))
        for key, value in pairs or ():
            made[self.of(key)] = self.of(value)
        return made


def _is_named(function: FunctionType) -> bool:
    """Whether its module has it under its name."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _contents(cell: CellType) -> list[Any]:
    """What a variable holds; nothing before it is assigned."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _restore(made: Any, state: Any) -> None:
    """Give an object the attributes that its class told, in dictionaries of two kinds: its own, and
    that of slots."""
    if isinstance(made, _Restored):
        made.__setstate__(state)
        return
    own, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if own:
        vars(made).update(own)
    for name, value in (slots or {}).items():
        setattr(made, name, value)

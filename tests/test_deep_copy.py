"""Deep copies: functions with what they close over, and the rest as `copy.deepcopy` has it."""

from __future__ import annotations

import copyreg
import random
import re
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foretoken.deep_copy import deep_copy

Count = Callable[[], int]


def counter() -> Count:
    count = 0

    def up() -> int:
        nonlocal count
        count += 1
        return count

    return up


def pair() -> tuple[Count, Count]:
    """One counts up, the other reads the same variable."""
    count = 0

    def up() -> int:
        nonlocal count
        count += 1
        return count

    return up, lambda: count


class Holding:
    __slots__ = ("__dict__", "up")

    def __init__(self, up: Count) -> None:
        self.up, self.calls = up, 0

    def both(self) -> int:
        self.calls += 1
        return self.calls + self.up()


def in_a_default() -> Count:
    def up(calls: list[int] = []) -> int:  # noqa: B006
        calls.append(1)
        return len(calls)

    return up


def in_a_keyword() -> Count:
    def up(*, calls: list[int] = []) -> int:  # noqa: B006
        calls.append(1)
        return len(calls)

    return up


def in_its_own_attribute() -> Count:
    def up() -> int:
        up.calls = getattr(up, "calls", 0) + 1  # type: ignore[attr-defined]
        return int(up.calls)  # type: ignore[attr-defined]

    return up


def wrapped() -> Count:
    up = counter()

    @wraps(up)
    def outer() -> int:
        return up()

    return outer


HOLDERS: dict[str, Callable[[Count], tuple[Any, Callable[[Any], int]]]] = {
    "itself": lambda up: (up, lambda held: held()),
    "list": lambda up: ([up], lambda held: held[0]()),
    "tuple": lambda up: ((1, (up,)), lambda held: held[1][0]()),
    "mapping": lambda up: ({"up": up}, lambda held: held["up"]()),
    "queue": lambda up: (deque([up]), lambda held: held[0]()),
    "attribute": lambda up: (SimpleNamespace(up=up), lambda held: held.up()),
    "slot": lambda up: (Holding(up), lambda held: held.up()),
    "partial": lambda up: (partial(up), lambda held: held()),
    "argument of a partial": lambda up: (partial(lambda f: f(), up), lambda held: held()),
    "method": lambda up: (MethodType(lambda self: up(), object()), lambda held: held()),
    "set": lambda up: ({up}, lambda held: next(iter(held))()),
    "factory": lambda up: (defaultdict(up), lambda held: held[len(held)]),
}
MAKERS = [counter, in_a_default, in_a_keyword, in_its_own_attribute, wrapped]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("make", MAKERS)
def test_a_function_remembers_for_its_own_copy_only(make: Callable[[], Count], holder: str) -> None:
    held, call = HOLDERS[holder](make())
    assert call(held) == 1
    one = deep_copy(held)
    assert [call(one), call(one)] == [2, 3]
    other = deep_copy(one)
    assert [call(held), call(other), call(one)] == [2, 4, 4]


def test_what_is_shared_stays_shared() -> None:
    """Two functions over one variable, an object and a method of it, a function that calls itself,
    a list that holds itself."""
    up, read = deep_copy(pair())
    assert (up(), read()) == (1, 1)

    held = Holding(counter())
    one, both = deep_copy((held, held.both))
    assert (both(), both(), one.calls, held.calls) == (2, 4, 2, 0)

    def down(left: int) -> int:
        return 0 if not left else 1 + down(left - 1)

    assert deep_copy([down])[0](5) == 5 and deep_copy([down])[0] is not down

    def itself() -> object:
        return itself

    again = deep_copy(itself)
    assert again is not itself and again() is again

    counts, key = deep_copy(({held: 1}, held))
    assert list(counts) == [key] and key is not held

    ring: list[Any] = []
    ring.append((ring,))
    copied = deep_copy(ring)
    assert copied is not ring and copied[0][0] is copied


def test_a_variable_without_a_value() -> None:
    """It has one by the time that it is read."""

    def late() -> Callable[[], int]:
        made = deep_copy([lambda: value])[0]
        with pytest.raises(NameError):
            made()
        read = lambda: value  # noqa: E731
        value = 5
        return read

    assert deep_copy([late()])[0]() == 5


def test_what_a_module_names_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied of it, though it has default arguments or closes over a lock."""
    lock = threading.Lock()

    def locked() -> bool:
        return lock.locked()

    known = [counter, wraps, torch.nn.functional.softmax, Holding, Holding.both, sys, len]
    assert all(a is b for a, b in zip(known, deep_copy(known), strict=True))
    with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object"):
        deep_copy([locked])
    locked.__qualname__ = "named"
    monkeypatch.setattr(sys.modules[__name__], "named", locked, raising=False)
    assert deep_copy([locked]) == [locked]


Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = "red"


class Own:
    """Says itself how it is copied."""

    def __init__(self, calls: list[int], name: str) -> None:
        self.calls, self.name = calls, name

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        return Own(deepcopy(self.calls, memo), "copied")


class Restored:
    def __init__(self) -> None:
        self.up, self.lock = counter(), threading.Lock()

    def __getstate__(self) -> Count:
        return self.up

    def __setstate__(self, up: Count) -> None:
        self.up, self.lock = up, threading.Lock()


@dataclass
class Record:
    parts: list[int] = field(default_factory=lambda: [1, 2])


def things() -> list[Any]:
    return [
        *(None, True, 5, 1.5, 2j, "a", b"a", ..., NotImplemented, int, range(3), slice(1, 2)),
        *([1, [2]], (1, [2]), (1, 2), {"a": [1]}, {1, 2}, frozenset({1}), bytearray(b"a")),
        *(deque([1, [2]], 5), OrderedDict(a=[1]), defaultdict(list, a=[1]), Point([1], 2)),
        *(Record(), Colour.RED, re.compile("a"), SimpleNamespace(a=[1])),
        *(torch.float32, torch.device("cpu"), torch.Size([1, 2]), np.float32(1.5)),
    ]


def test_everything_else_is_copied_as_it_always_was() -> None:
    """The values, and which of them are new."""
    ours, theirs = deep_copy(things()), deepcopy(things())
    for given, one, other in zip(things(), ours, theirs, strict=True):
        assert type(one) is type(other) and one == other == given
    known = things()
    for thing, one, other in zip(known, deep_copy(known), deepcopy(known), strict=True):
        assert (thing is one) == (thing is other), thing
    assert torch.equal(deep_copy({"a": torch.arange(3)})["a"], torch.arange(3))
    assert np.array_equal(deep_copy([np.arange(3)])[0], np.arange(3))
    number = random.Random(3)
    copied = deep_copy(number)
    assert copied is not number and copied.random() == number.random()
    layer = torch.nn.Linear(2, 2)
    assert torch.equal(deep_copy(layer).weight, layer.weight)
    assert deep_copy(layer).weight is not layer.weight


def test_what_classes_say_of_their_copies() -> None:
    calls = [1]
    shared, own = deep_copy((calls, Own(calls, "given")))
    assert own.name == "copied" and own.calls is shared and shared is not calls
    one = Restored()
    other = deep_copy(one)
    assert (one.up(), other.up(), other.up(), one.up()) == (1, 1, 2, 2)
    target = Record()
    seen = weakref.ref(target)
    assert deep_copy([seen]) == [seen]
    for wrong in (threading.Lock(), (n for n in "a")):
        with pytest.raises(TypeError, match="cannot pickle"):
            deep_copy([wrong])


class Told:
    """Tells its state in a list that is made for this."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __getstate__(self) -> list[int]:
        return [self.number]

    def __setstate__(self, state: list[int]) -> None:
        [self.number] = state


def test_what_is_made_for_the_copy_is_not_taken_for_another() -> None:
    """Though it is gone by the time that the next one is made, maybe in its place."""
    assert [each.number for each in deep_copy([Told(i) for i in range(9)])] == [*range(9)]


def test_what_is_registered_for_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def reduced(given: Told) -> Any:
        return Told, (given.number + 1,)

    monkeypatch.setitem(copyreg.dispatch_table, Told, reduced)
    assert deep_copy(Told(3)).number == 4

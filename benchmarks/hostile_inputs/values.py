"""Values of every Python type and of every bad habit, made anew for each case."""

from __future__ import annotations

import datetime
import decimal
import fractions
import sys
from collections import OrderedDict, UserList
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

Make = Callable[[], Any]


class Colour(Enum):
    RED = 1


class Raises:
    """Raises at whatever is asked of it."""

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "_what", what)

    def _raise(self, what: str) -> Any:
        if object.__getattribute__(self, "_what") == what:
            raise RuntimeError(f"no {what}")
        return NotImplemented

    def __repr__(self) -> str:
        self._raise("repr")
        return "<Raises>"

    def __bool__(self) -> bool:
        self._raise("bool")
        return True

    def __eq__(self, other: object) -> Any:
        return self._raise("eq")

    def __hash__(self) -> int:
        self._raise("hash")
        return 7

    def __lt__(self, other: object) -> Any:
        return self._raise("lt")

    def __len__(self) -> int:
        self._raise("len")
        return 3

    def __iter__(self) -> Iterator[int]:
        self._raise("iter")
        return iter((1, 2, 3))

    def __getitem__(self, key: object) -> int:
        self._raise("getitem")
        if isinstance(key, int) and key > 2:
            raise IndexError
        return 1

    def __float__(self) -> float:
        self._raise("float")
        return 1.0


class Listed(UserList[Any]):
    """A sequence that is no list."""


class Whole(int):
    """An int that shows itself badly."""

    def __repr__(self) -> str:
        return "Whole\n(\x1b[31m)"


def recursive() -> list[Any]:
    """A list that contains itself."""
    endless: list[Any] = [1]
    endless.append(endless)
    return endless


def deep(depth: int = 3000) -> list[Any]:
    nested: list[Any] = [1]
    for _ in range(depth):
        nested = [nested]
    return nested


NUMBERS: dict[str, Make] = {
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "-1": lambda: -1,
    "-2": lambda: -2,
    "1.5": lambda: 1.5,
    "-0.5": lambda: -0.5,
    "2.0": lambda: 2.0,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "1e-320": lambda: 1e-320,
    "10**9": lambda: 10**9,
    "10**30": lambda: 10**30,
    "-10**30": lambda: -(10**30),
    "2**63": lambda: 2**63,
    "2**31": lambda: 2**31,
    "10**400": lambda: 10**400,
    "np.int64(3)": lambda: np.int64(3),
    "np.int8(-1)": lambda: np.int8(-1),
    "np.uint8(2)": lambda: np.uint8(2),
    "np.float32(nan)": lambda: np.float32("nan"),
    "np.float64(0.5)": lambda: np.float64(0.5),
    "np.bool_(1)": lambda: np.bool_(True),
    "np.array(5)": lambda: np.array(5),
    "torch.tensor(3)": lambda: torch.tensor(3),
    "torch.tensor(0.5)": lambda: torch.tensor(0.5),
    "Decimal('1.5')": lambda: decimal.Decimal("1.5"),
    "Decimal('NaN')": lambda: decimal.Decimal("NaN"),
    "Fraction(1, 3)": lambda: fractions.Fraction(1, 3),
    "Whole(1)": lambda: Whole(1),
}
"""Numbers, or nearly so."""

NOT_NUMBERS: dict[str, Make] = {
    "''": lambda: "",
    "'four'": lambda: "four",
    "'1'": lambda: "1",
    "'nan'": lambda: "nan",
    "'\\ud800'": lambda: "\ud800",
    "'\\x00'": lambda: "\x00",
    "'a\\nb\\x1b[31m'": lambda: "a\nb\x1b[31m",
    "'x' * 100000": lambda: "x" * 100_000,
    "b'x'": lambda: b"x",
    "b''": lambda: b"",
    "bytearray": lambda: bytearray(b"abc"),
    "[]": list,
    "[1]": lambda: [1],
    "[None]": lambda: [None],
    "[[]]": lambda: [[]],
    "[[1, 2]]": lambda: [[1, 2]],
    "['a']": lambda: ["a"],
    "['']": lambda: [""],
    "[True]": lambda: [True],
    "[1.5]": lambda: [1.5],
    "[nan]": lambda: [float("nan")],
    "[-1]": lambda: [-1],
    "[10**30]": lambda: [10**30],
    "[10**5]": lambda: [10**5],
    "list(range(10**5))": lambda: list(range(10**5)),
    "()": lambda: (),
    "(1, 2)": lambda: (1, 2),
    "{}": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{1: 'a'}": lambda: {1: "a"},
    "{1: nan}": lambda: {1: float("nan")},
    "{-1: 1.0}": lambda: {-1: 1.0},
    "{'1': 1.0}": lambda: {"1": 1.0},
    "OrderedDict": lambda: OrderedDict([(None, None)]),
    "{1}": lambda: {1},
    "range(3)": lambda: range(3),
    "generator": lambda: (x for x in (1, 2)),
    "iter([1])": lambda: iter([1]),
    "map": lambda: map(int, "12"),
    "object()": object,
    "int": lambda: int,
    "Exception": lambda: Exception("a\nb"),
    "lambda": lambda: lambda *_: None,
    "print": lambda: print,
    "sys": lambda: sys,
    "1j": lambda: 1j,
    "Path('.')": lambda: Path("."),
    "date": lambda: datetime.date(2020, 1, 1),
    "Colour.RED": lambda: Colour.RED,
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "np.array([1, 2])": lambda: np.array([1, 2]),
    "np.array([])": lambda: np.array([]),
    "np.array([[1]])": lambda: np.array([[1]]),
    "np.array('a')": lambda: np.array("a"),
    "np.array(object)": lambda: np.array([None, "a"], dtype=object),
    "torch.tensor([1.5])": lambda: torch.tensor([1.5]),
    "torch.tensor([1, 2])": lambda: torch.tensor([1, 2]),
    "torch.zeros(0)": lambda: torch.zeros(0),
    "torch.meta": lambda: torch.empty(3, device="meta"),
    "torch.sparse": lambda: torch.eye(2).to_sparse(),
    "memoryview": lambda: memoryview(b"abc"),
    "Listed([1])": lambda: Listed([1]),
    "recursive": recursive,
    "deep": deep,
    **{f"Raises({what!r})": lambda what=what: Raises(what) for what in ("repr", "bool", "eq")},  # type: ignore[misc]
    **{f"Raises({what!r})": lambda what=what: Raises(what) for what in ("len", "iter", "hash")},  # type: ignore[misc]
}
"""What is no number at all."""

VALUES: dict[str, Make] = {"None": lambda: None, **NUMBERS, **NOT_NUMBERS}


def kind(value: object) -> str:
    """A type's name, which an error may give in place of the value."""
    return type(value).__name__

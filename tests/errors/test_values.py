"""Values as their declared types: what fits becomes Python's own, the rest is one sentence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pytest
import torch

from case_names import case_name
from foretoken import ForetokenError
from foretoken.errors.values import check_range, check_tokens, typed


class Rule:
    pass


@runtime_checkable
class Stopper(Protocol):
    def stop(self) -> None: ...


class Stop:
    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("given", "hint", "expected"),
    [
        (3, int, 3),
        (np.int64(3), int, 3),
        (np.uint8(3), int, 3),
        (3.0, int, 3),
        (np.float32(3), int, 3),
        (10**40, int, 10**40),
        (2, float, 2.0),
        (np.float32(0.5), float, 0.5),
        (Fraction(1, 4), float, 0.25),
        (True, bool, True),
        (np.bool_(False), bool, False),
        ("a", str, "a"),
        (None, int | None, None),
        (4, int | None, 4),
        ("x", str | Path | None, "x"),
        (Path("x"), str | Path | None, Path("x")),
        ([1, 2], Sequence[int], (1, 2)),
        ((1, np.int32(2)), Sequence[int], (1, 2)),
        (range(3), Sequence[int], (0, 1, 2)),
        (np.array([1, 2]), Sequence[int], (1, 2)),
        (torch.tensor([1, 2]), Sequence[int], (1, 2)),
        ([], Sequence[int], ()),
        ([3, 1], tuple[int, ...], (3, 1)),
        ([[0.5, 3], (1, 2)], Sequence[tuple[float, int]], ((0.5, 3), (1.0, 2))),
        ([[0], [0, 1]], Sequence[Sequence[int]], ((0,), (0, 1))),
        ([4, [2, 1]], Sequence[int | Sequence[int]], (4, (2, 1))),
        ("own", str | Sequence[str], "own"),
        ({np.int64(3): 1}, Mapping[int, float], {3: 1.0}),
        ([print], Sequence[Callable[[int], int]], (print,)),
    ],
    ids=case_name,
)
def test_what_fits(given: Any, hint: Any, expected: Any) -> None:
    """The value, of Python's own types throughout."""
    value = typed("x", given, hint)
    assert value == expected and type(value) is type(expected)
    if isinstance(value, tuple) and value:
        assert [type(item) for item in value] == [type(item) for item in expected]


@pytest.mark.parametrize(
    ("given", "hint", "words"),
    [
        ("four", int, "a whole number"),
        (1.5, int, "a whole number"),
        (True, int, "a whole number"),
        (np.bool_(True), int, "a whole number"),
        (None, int, "a whole number"),
        (float("nan"), int, "a whole number"),
        (float("inf"), int, "a whole number"),
        (1 + 0j, int, "a whole number"),
        (torch.tensor(3), int, "a whole number"),
        (int, int, "a whole number"),
        ("1", float, "a number"),
        (float("nan"), float, "a number"),
        (-float("inf"), float, "a number"),
        (10**400, float, "a number"),
        (False, float, "a number"),
        ([1.0], float, "a number"),
        (1, bool, "True or False"),
        ("yes", bool, "True or False"),
        (None, bool, "True or False"),
        (b"x", str, "a text"),
        (3, str | None, "a text or None"),
        (object(), Path, "a path"),
        ("12", Sequence[int], "a list of whole numbers"),
        (b"12", Sequence[int], "a list of whole numbers"),
        ({1, 2}, Sequence[int], "a list of whole numbers"),
        ({1: 2}, Sequence[int], "a list of whole numbers"),
        ((i for i in (1,)), Sequence[int], "a list of whole numbers"),
        (3, Sequence[int], "a list of whole numbers"),
        (np.array(3), Sequence[int], "a list of whole numbers"),
        (np.zeros((2, 2), int), Sequence[int], "a list of whole numbers"),
        ([1, True], Sequence[int], "a list of whole numbers"),
        ([[1, 2, 3]], Sequence[tuple[float, int]], "a list of lists of numbers or whole numbers"),
        (["a", 1], Sequence[str | Sequence[int]], "a list of texts or lists of whole numbers"),
        ([(1, 2)], Mapping[int, float], "a mapping of whole numbers to numbers"),
        ({"1": 2.0}, Mapping[int, float], "a mapping of whole numbers to numbers"),
        ({1: None}, Mapping[int, float] | None, "a mapping of whole numbers to numbers or None"),
        ([3], Sequence[Callable[[int], int]], "a list of callables"),
        ("x", Rule, "a Rule"),
        (Rule, Rule, "a Rule"),
        (Stop, Stopper, "a Stopper"),
    ],
    ids=case_name,
)
def test_what_does_not_fit(given: Any, hint: Any, words: str) -> None:
    """One sentence on one line names the field, the value and what it must be."""
    with pytest.raises(ForetokenError) as error:
        typed("field", given, hint)
    said = str(error.value)
    assert said.startswith("field is ") and said.endswith(f"; it must be {words}.")
    assert "\n" not in said


def test_other_types_pass() -> None:
    """A field of any type takes anything, and an object of the declared class is one."""
    rule = Rule()
    assert typed("x", rule, Rule) is rule
    assert isinstance(typed("x", Stop(), Stopper), Stop)
    for given in (None, Rule, 3, "x"):
        assert typed("x", given, Any) is given


def test_ranges() -> None:
    """The bounds belong to the range; None passes, NaN doesn't, and the option is named."""
    check_range(1, 4, low=1, high=4, none=None)
    for value, said in ((0, "0"), (4.5, "4.5"), (float("nan"), "nan")):
        with pytest.raises(ForetokenError, match=f"^rate is {said}; it must be from 1 to 4\\.$"):
            check_range(1, 4, fine=2, rate=value)


def test_a_drafts_length() -> None:
    """Whoever asks for no draft is told how to have none."""
    check_tokens(1, 64)
    check_tokens(64, 64)
    with pytest.raises(ForetokenError, match=r"^num_speculative_tokens is 0; .*'autoregressive'"):
        check_tokens(0, 64)
    with pytest.raises(ForetokenError, match=r"^num_speculative_tokens is 65; .*from 1 to 64\.$"):
        check_tokens(65, 64)


class Refuses(float):
    """A number that can't be read."""

    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [Refuses(1), torch.empty(2, device="meta"), torch.eye(2).to_sparse()],
    ids=["refuses", "meta", "sparse"],
)
def test_values_that_raise_as_they_are_read(value: Any) -> None:
    """A sentence, as of any other value that doesn't fit."""
    with pytest.raises(ForetokenError, match=r"x is a value of type .*; it must be a"):
        typed("x", value, float if isinstance(value, float) else Sequence[int])


def test_sets_where_the_order_is_nothing() -> None:
    assert sorted(typed("x", {3, 1}, Collection[int])) == [1, 3]
    assert typed("x", [np.int64(3)], Collection[int]) == (3,)
    with pytest.raises(ForetokenError, match=r"x is \{1\}; it must be a list of whole numbers"):
        typed("x", {1}, Sequence[int])


@pytest.mark.parametrize(("given", "read"), [(1.0, 1.0), (np.float32(1), 1.0), (1, 1)])
def test_a_float_stays_one_where_it_may(given: Any, read: Any) -> None:
    """A share of 1.0 is not one byte."""
    found = typed("share", given, int | float | str | None)
    assert found == read and type(found) is type(read)
    assert type(typed("count", given, int | None)) is int

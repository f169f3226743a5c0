"""Drafters, acceptance rules and wrapped targets are found by their files' names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.length import Fixed, LengthRule
from foretoken.models.target import ModelTarget
from foretoken.registry import (
    drafter_class,
    drafter_names,
    target_class,
    typed_options,
    verifier_class,
    verifier_names,
)
from foretoken.tree import Kind


def test_drafters_by_their_files_names() -> None:
    """Each drafter's class is found by its file's name."""
    for name in drafter_names():
        assert drafter_class(name).__module__ == f"foretoken.drafters.{name}"


def test_rules_are_complete() -> None:
    """Each rule is built by its file's name and says all that a rule has to say of itself."""
    for name in verifier_names():
        rule = verifier_class(name)
        assert rule.__module__ == f"foretoken.verify.{name}" and rule() == rule()
        assert all(type(getattr(rule, claim)) is bool for claim in ("exact", "trees", "sampling"))
        assert rule.kinds and rule.kinds <= set(Kind) - {Kind.PADDING}
        assert re.search(r"\d{4}|TensorRT", rule.source), name


def test_classes_of_other_packages() -> None:
    """package.module:Class, for each of the three; one that isn't there is named."""
    path = "foretoken.models.target:ModelTarget"
    assert drafter_class(path) is verifier_class(path) is target_class(path) is ModelTarget
    for find, what in (
        (drafter_class, "Drafter"),
        (verifier_class, "Verifier"),
        (target_class, "Target"),
    ):
        with pytest.raises(ForetokenError, match=f"{what} 'no_module:Thing' can't be imported"):
            find("no_module:Thing")


def test_a_file_without_a_class_of_its_name_is_refused() -> None:
    """The sentence names the file."""
    with pytest.raises(ForetokenError, match=r"foretoken\.models\.cache has no class"):
        target_class("cache")


@dataclass
class Annotated:
    count: int = 3
    rate: float | None = None
    sizes: tuple[int, ...] = ()
    rule: str | LengthRule = "constant"
    model: Any = None


@dataclass
class Unresolved:
    count: int = 3
    other: Nowhere = None  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("count", "four", "a whole number"),
        ("count", 1.5, "a whole number"),
        ("count", None, "a whole number"),
        ("count", True, "a whole number"),
        ("rate", "fast", "a number or None"),
        ("rate", float("nan"), "a number or None"),
        ("sizes", 3, "a list of whole numbers"),
        ("sizes", ["a"], "a list of whole numbers"),
        ("rule", Fixed, "a text or a LengthRule"),
        ("rule", 3, "a text or a LengthRule"),
    ],
)
def test_an_option_of_another_type(name: str, given: Any, said: str) -> None:
    """The option and its method are named; a class is no instance."""
    with pytest.raises(ForetokenError) as error:
        typed_options(Annotated, "mine", {name: given})
    assert str(error.value).startswith(f"Option {name} of method 'mine' is ")
    assert str(error.value).endswith(f"; it must be {said}.")


def test_options_of_the_declared_types() -> None:
    """Numbers become Python's, lists tuples; a rule and a model stay."""
    rule, model = Fixed(3), object()
    given = {"count": 4.0, "rate": 1, "sizes": [1, 2], "rule": rule, "model": model}
    typed = typed_options(Annotated, "mine", given)
    assert typed == {"count": 4, "rate": 1.0, "sizes": (1, 2), "rule": rule, "model": model}
    assert [type(typed[name]) for name in ("count", "rate")] == [int, float]


def test_an_annotation_that_leads_nowhere() -> None:
    """An outsider's class may import its types for the checker only: its options pass."""
    assert typed_options(Unresolved, "mine", {"count": "four"}) == {"count": "four"}

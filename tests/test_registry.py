"""Drafters, acceptance rules and wrapped targets are found by their files' names."""

from __future__ import annotations

import re

import pytest

from foretoken import ForetokenError
from foretoken.models.target import ModelTarget
from foretoken.registry import (
    drafter_class,
    drafter_names,
    target_class,
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

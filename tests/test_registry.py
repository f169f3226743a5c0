"""Drafters, acceptance rules and wrapped targets are found by their files' names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.config import build
from foretoken.length import Fixed, LengthRule
from foretoken.models.target import ModelTarget
from foretoken.registry import (
    Installed,
    drafter_class,
    drafter_names,
    installed_drafters,
    replaced,
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


@pytest.fixture
def offering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a package of this name whose metadata has these lines of entry points."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, lines: str) -> None:
        folder = tmp_path / f"{name}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (folder / "entry_points.txt").write_text(f"[foretoken.drafters]\n{lines}\n")

    return install


PATH = "foretoken.drafters.prompt_lookup:PromptLookup"  # any class will do


def test_drafters_of_installed_packages(offering: Callable[[str, str], None]) -> None:
    """By the name that their package gives them, alone and as parts; ours can't be replaced."""
    offering("copiers", f"theirs = {PATH}\npld = nowhere:Nothing\nnothing = nowhere:Nothing")
    assert drafter_class("theirs").__name__ == "PromptLookup"
    assert Installed("theirs", PATH, "copiers 1.2") in installed_drafters()
    built = build({"method": "theirs", "num_speculative_tokens": 3})
    assert (built.name, type(built.drafter).__name__) == ("theirs", "PromptLookup")
    assert type(build({"method": "theirs+suffix"}).drafter).__name__ == "Either"
    assert type(build({"method": "pld"}).drafter).__name__ == "PromptLookup"
    assert drafter_class("nothing").__module__ == "foretoken.drafters.nothing"
    with pytest.raises(ForetokenError, match="Unknown option of method 'theirs'"):
        build({"method": "theirs", "colour": 3})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", r"^Drafter 'broken' of copiers 1.2, no_module:Thing, can't be imported \(.*\);"),
        ("valued", r"^Drafter 'valued' of copiers 1.2, foretoken.registry:GROUP, is no class;"),
        ("twice", "^Drafter 'twice' is offered by copiers 1.2 and by others 1.2; choose one by"),
        ("thiers", "^Unknown method 'thiers'. Did you mean 'theirs'?"),
    ],
)
def test_installed_drafters_that_cant_be_used(
    name: str, said: str, offering: Callable[[str, str], None]
) -> None:
    """One sentence that names the package, and only for the name that was asked for."""
    lines = f"broken = no_module:Thing\nvalued = foretoken.registry:GROUP\ntwice = {PATH}"
    offering("copiers", f"{lines}\ntheirs = {PATH}")
    offering("others", f"twice = {PATH}")
    with pytest.raises(ForetokenError, match=said):
        build({"method": name})
    assert build({"method": "theirs"}).name == "theirs"


def test_names_that_nothing_has() -> None:
    """The nearest drafter is named, whoever asks."""
    with pytest.raises(ForetokenError, match=r"^Unknown drafter .prompt_lokup.\. Did you mean"):
        drafter_class("prompt_lokup")


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


def test_options_in_the_place_of_others() -> None:
    """By any of their names; but prompt lookup's own length is not that of other drafts, and the
    options of a part are none of the whole's, though a part is called like one."""
    assert replaced({"num_speculative_tokens": 4}, {"num_assistant_tokens": 3}) == {
        "num_assistant_tokens": 3
    }
    both = {"num_speculative_tokens": 4}, {"prompt_lookup_num_tokens": 3}
    assert replaced(*both) == both[0] | both[1]
    part = {"model": "a"}, {"draft_model": {"model": "b"}}
    assert replaced(*part) == part[0] | part[1] and replaced(*part[::-1]) == part[0] | part[1]

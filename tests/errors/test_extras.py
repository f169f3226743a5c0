"""Packages of the extras: what is said where one is missing."""

from __future__ import annotations

import json
import re
import sys
import tomllib

import pytest

import structure
from foretoken import ForetokenError
from foretoken.errors.extras import imported, missing


def test_an_installed_module_is_imported() -> None:
    """By its full name."""
    assert imported("json", "tune", "Tuning needs") is json


def test_a_missing_one_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the package and the extra that has it."""
    monkeypatch.setitem(sys.modules, "nothing_of_this.name", None)
    with pytest.raises(ForetokenError) as caught:
        imported("nothing_of_this.name", "tune", "Tuning needs")
    assert str(caught.value) == "Tuning needs nothing_of_this; pip install 'foretoken[tune]'."
    assert isinstance(caught.value.__cause__, ImportError)
    assert str(missing("rich", "cli", "A bar needs")).startswith("A bar needs rich; ")


def test_it_is_said_in_one_place() -> None:
    """No other file words it anew."""
    found = [path for path in structure.SOURCE.rglob("*.py") if "foretoken[" in path.read_text()]
    assert found == [structure.SOURCE / "errors" / "extras.py"]


def test_the_extras_that_are_named_exist() -> None:
    """In pyproject.toml."""
    project = tomllib.loads((structure.SOURCE.parents[1] / "pyproject.toml").read_text())
    call = re.compile(r"\b(?:imported|missing)\(\s*[^()]*?, \"(\w+)\", f?\"[^\"]* needs?\"\)")
    texts = [path.read_text() for path in structure.SOURCE.rglob("*.py")]
    named = {extra for text in texts for extra in call.findall(text)}
    assert {"train", "tune", "ray"} <= named <= {*project["project"]["optional-dependencies"]}

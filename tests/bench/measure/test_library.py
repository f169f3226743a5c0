"""Libraries of the `bench` extra."""

from __future__ import annotations

import json
import sys

import pytest

from foretoken import ForetokenError
from foretoken.bench.measure.library import library


def test_an_installed_module_is_imported() -> None:
    """By its full name."""
    assert library("json") is json


def test_a_missing_one_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the package and what to install."""
    monkeypatch.setitem(sys.modules, "nothing_of_this.name", None)
    with pytest.raises(ForetokenError, match=r"needs nothing_of_this; .*foretoken\[bench\]"):
        library("nothing_of_this.name")

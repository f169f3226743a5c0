"""The bundled models are found by name, and without their package one sentence says what to do."""

from __future__ import annotations

from importlib import resources

import pytest

from foretoken import ForetokenError
from foretoken.models import bundled
from foretoken.models.load import find


def test_a_name_is_a_checkpoint_folder() -> None:
    """By its name wherever a checkpoint is asked for."""
    assert "mini" in bundled.names()
    assert (bundled.path("mini") / "config.json").is_file()
    assert find("mini") == bundled.path("mini")
    with pytest.raises(ForetokenError, match="Did you mean 'mini-draft'"):
        bundled.path("mini_draft")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """No names, and a sentence that says how to install the models."""

    def missing(package: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}")

    monkeypatch.setattr(resources, "files", missing)
    assert bundled.names() == []
    with pytest.raises(ForetokenError, match=r"'mini' needs .*: pip install \./zoo\.$"):
        bundled.path("mini")
    with pytest.raises(ForetokenError, match=r"There is no .* pip install \./zoo\.$"):
        find("mini")

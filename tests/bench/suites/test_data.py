"""Where texts that the package doesn't ship are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.bench.suites import data


def test_the_folder_is_the_one_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FORETOKEN_DATA names it; one that does not exist is none."""
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    assert data.folder() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    monkeypatch.setenv(data.VARIABLE, f"~/{tmp_path.name}")  # as a file of variables has it
    assert data.folder() == tmp_path
    monkeypatch.setenv(data.VARIABLE, str(tmp_path / "missing"))
    assert data.folder() is None


def test_without_a_name_it_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to the working directory, if it is there."""
    monkeypatch.delenv(data.VARIABLE, raising=False)
    here = tmp_path / "checkout"
    here.mkdir()
    monkeypatch.chdir(here)
    assert data.folder() is None
    (here / data.DEFAULT).mkdir(parents=True)
    assert data.folder() == data.DEFAULT

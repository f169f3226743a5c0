"""The machine's names, and the one folder for what may be lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.machine import cache_folder, cores, processor


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """FORETOKEN_CACHE itself, else a folder under XDG_CACHE_HOME, else one under the home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.setenv("FORETOKEN_CACHE", "")
    assert cache_folder() == tmp_path / "xdg" / "foretoken"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / "home" / ".cache" / "foretoken"


def test_processor_and_cores() -> None:
    """Some name, and at least the core that this runs on."""
    assert processor().strip()
    assert cores() >= 1

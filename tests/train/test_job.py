"""What a training is asked for, and where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.train.job import Job, Progress
from foretoken.train.recipe import Recipe


def test_settings_that_could_change_places_are_named() -> None:
    """Of twenty, many are of one type."""
    given = "sps", "mini", (), Recipe(), Path("out")
    assert Job(*given, source="fixed").source == "fixed"
    with pytest.raises(TypeError, match="positional"):
        Job(*given, "fixed")  # type: ignore[call-arg]


def test_a_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By which its card tells how to load it, also where it is given as the present one."""
    (tmp_path / "heads").mkdir()
    monkeypatch.chdir(tmp_path / "heads")
    for out in (Path(), Path("../heads"), tmp_path / "heads"):
        assert Job("sps", "mini", (), Recipe(), out).name == "heads"


def test_progress_counts_estimates_since_the_best() -> None:
    """And is the same after it was saved and loaded."""
    progress = Progress()
    assert progress.judge(1.5) and not progress.judge(1.5) and not progress.judge(1.2)
    assert (progress.best, progress.stale) == (1.5, 2)
    assert progress.judge(1.6) and progress.stale == 0
    again = Progress()
    again.load_state_dict(progress.state_dict())
    assert (again.step, again.best, again.stale) == (0, 1.6, 0)


def test_of_nothing_the_newest_is_the_best() -> None:
    """So that something is saved, whatever it is worth."""
    progress = Progress()
    assert progress.judge(0.0) and progress.judge(0.0)
    assert progress.judge(1.5) and not progress.judge(0.0)

"""What a training writes while it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.train.metrics import FILE, Metrics, check_trackers

pytest.importorskip("accelerate")


def metrics(out: Path, step: int = 0, main: bool = True) -> Metrics:
    accelerator: Any = SimpleNamespace(log_with=[], is_main_process=main)
    return Metrics(accelerator, out, step, {})


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / FILE).read_text().splitlines()]


def test_lines_of_steps_that_are_done_again(tmp_path: Path) -> None:
    """A killed run may have written more than it resumes from, the last of it half."""
    first = metrics(tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"loss": 1 / step})
    with (tmp_path / FILE).open("a") as file:
        file.write('3\n{"step": 4, "lo')
    metrics(tmp_path, step=2).log(3, {"loss": 9.0})
    assert lines(tmp_path) == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 0.5},
        {"step": 3, "loss": 9.0},
    ]


def test_one_process_writes(tmp_path: Path) -> None:
    metrics(tmp_path)
    metrics(tmp_path, main=False).log(1, {"loss": 1.0})
    assert lines(tmp_path) == []


def test_trackers_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate would leave them out without a word."""
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", lambda: ["tensorboard"])
    check_trackers(["tensorboard"])
    with pytest.raises(ForetokenError, match="pip install wandb"):
        check_trackers(["tensorboard", "wandb"])
    with pytest.raises(ForetokenError, match="Did you mean 'tensorboard'"):
        check_trackers(["tensorbord"])


def test_a_tracker_gets_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the folder's name, also where that is the present one."""
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    logged: list[Any] = []
    accelerator: Any = SimpleNamespace(
        log_with=["tensorboard"],
        is_main_process=True,
        init_trackers=lambda name, config: logged.append((name, config)),
        log=lambda values, step: logged.append((step, values)),
    )
    Metrics(accelerator, Path(), 0, {"betas": (0.9, 0.95)}).log(1, {"loss": 2.0})
    assert logged == [("run", {"betas": "(0.9, 0.95)"}), (1, {"loss": 2.0})]

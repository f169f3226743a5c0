"""All trainings by one program: their commands, and what is said of each."""

from __future__ import annotations

from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


def given(work: Path, **changed: Any) -> Namespace:
    usual: dict[str, Any] = {
        "work": work,
        "device": "cpu",
        "workers": None,
        "tasks": ("translator",),
        "minutes_base": 2.5,
        "minutes_drafter": 2.0,
        "rows": 512,
        "rows_drafter": None,
    }
    return Namespace(**usual | changed)


def options(command: list[str]) -> dict[str, str]:
    """Of a script, which is its third word."""
    return dict(zip(command[3::2], command[4::2], strict=True))


def test_base_models_come_before_drafters(tmp_path: Path) -> None:
    """Every drafter by itself, with its own rows and minutes."""
    jobs, names = import_module("run").jobs, import_module("drafters").NAMES
    bases, others = jobs(given(tmp_path))
    [(task, name, command)] = bases
    every = {"--task": "translator", "--work": str(tmp_path), "--device": "cpu"}
    assert (task, name, Path(command[2]).name) == ("translator", "base", "train.py")
    assert options(command) == {**every, "--minutes": "2.5", "--rows": "512"}
    assert [name for _, name, _ in others] == list(names)
    for task, name, command in others:
        own = {"--only": name, "--minutes": "2.0", "--rows": "512"}
        assert task == "translator" and Path(command[2]).name == "drafters.py"
        assert options(command) == {**every, **own}
    bases, others = jobs(given(tmp_path, workers=0, rows_drafter=64))
    assert {options(job[2])["--workers"] for job in [*bases, *others]} == {"0"}
    assert {options(job[2])["--rows"] for job in others} == {"64"}
    assert options(bases[0][2])["--rows"] == "512"


def test_what_is_said_of_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last step, or where it is told why it failed; what it said before stays."""
    run, said = import_module("run").run, "echo step 3, the end; echo bye"
    (tmp_path / "corrector").mkdir()
    log = tmp_path / "corrector" / "base.log"
    assert run(("corrector", "base", ["sh", "-c", said]), tmp_path)
    assert capsys.readouterr().out == "corrector base: step 3, the end\n"
    assert not run(("corrector", "base", ["sh", "-c", f"{said} >&2; exit 1"]), tmp_path)
    assert capsys.readouterr().out == f"corrector base: failed, see {log}\n"
    assert log.read_text().count("bye") == 2

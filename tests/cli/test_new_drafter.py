"""`foretoken new-drafter`: what it writes installs, passes its own tests and is a method."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import SRC, Pair, model, one_sentence, run
from foretoken.registry import drafter_names

PIP = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")


def python(*arguments: object, installed: Path) -> str:
    """What Python prints with a folder of installed packages before the others."""
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_package_works(checkpoints: Pair, tmp_path: Path) -> None:
    """Installed by pip, without a network: its tests pass, `methods` lists it, a text uses it."""
    folder, installed = tmp_path / "mine", tmp_path / "installed"
    assert run("new-drafter", "my_copier", "--out", folder).exit_code == 0
    python(*PIP, "--target", installed, folder, installed=installed)
    tests = folder / "tests"
    assert "2 passed" in python(
        "-m", "pytest", "-q", "--rootdir", tests, tests, installed=installed
    )
    rows = json.loads(python("-c", SRC, "methods", "--json", installed=installed))
    assert rows[-1]["name"] == "my_copier" and rows[-1]["package"] == "foretoken-my-copier 0.1.0"
    words = ("-c", SRC, "generate", "abcabcabc", *model(checkpoints))
    plain = python(*words, installed=installed)
    assert python(*words, "--method", "my_copier", installed=installed) == plain


@pytest.mark.parametrize(
    "name", ["My", "a-b", "class", "_a", "a__b", "a/b", "auto", "pld", "ngram"]
)
def test_names_that_are_refused(name: str, tmp_path: Path) -> None:
    """What can't be a file, a class and a method, or is one; nothing is written."""
    one_sentence(run("new-drafter", name, "--out", tmp_path / "x"))
    assert not list(tmp_path.iterdir())


def test_no_drafter_of_ours_is_hidden(tmp_path: Path) -> None:
    """Every file's name is refused."""
    for name in drafter_names():
        one_sentence(run("new-drafter", name, "--out", tmp_path / "x"))


def test_a_folder_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as it is; an empty one is filled, by default one of the drafter's name."""
    monkeypatch.chdir(tmp_path)
    assert run("new-drafter", "mine").exit_code == 0
    (page := tmp_path / "foretoken-mine" / "pyproject.toml").write_text("changed")
    one_sentence(run("new-drafter", "mine"))
    assert page.read_text() == "changed"
    (tmp_path / "empty").mkdir()
    assert run("new-drafter", "mine", "--out", "empty").exit_code == 0
    assert (tmp_path / "empty" / "src" / "foretoken_mine" / "mine.py").is_file()


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    done = run("new-drafter", "last_seen", "--out", tmp_path / "taken")
    assert done.exit_code == 1 and "taken is there already and not empty" in done.stderr
    assert (tmp_path / "taken").read_text() == "mine"

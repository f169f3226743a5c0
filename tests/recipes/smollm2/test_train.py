"""Killed, it goes on where it was; what is asked for is what each training gets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from foretoken.train.recipe import read_recipe
from trainings import SMALL, WORDS


def arguments(work: Path, **changes: Any) -> Namespace:
    given = {"work": work, "target": "model.gguf", "data": "prompts.jsonl", "precision": "auto"}
    return Namespace(**{**given, "only": ["medusa"], "changes": [], "jobs": 1, **changes})


def option(command: tuple[str, ...], name: str) -> list[str]:
    return [command[i + 1] for i, word in enumerate(command) if word == name]


def test_a_cut_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a model is not taken for one to begin with: it is cut again."""
    import train

    given = Namespace(work=tmp_path, target="model.gguf", data="prompts.jsonl")
    asked: list[str] = []

    def run(*command: str) -> None:
        asked.append(command[0])
        out = Path(command[command.index("--out") + 1])
        out.mkdir()
        (out / "config.json").write_text("{}")
        if len(asked) == 1:
            raise KeyboardInterrupt
        (out / "model.safetensors").write_text("")

    monkeypatch.setattr(train, "run", run)
    with pytest.raises(KeyboardInterrupt):
        train.changes_of("middle", given)
    wanted = ["--set", f"shape={{model: {tmp_path}/middle-begun}}"]
    assert train.changes_of("middle", given) == wanted
    assert len(list((tmp_path / "middle-begun").iterdir())) == 2
    train.changes_of("middle", given)
    assert asked == ["prune", "prune"] and len(list(tmp_path.iterdir())) == 1


def test_settings_reach_every_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the recipe's own; the draft model that begins at random has the steps of two. The
    draft models come in the order in which each needs the other, however they are named."""
    import train

    commands: list[tuple[str, ...]] = []

    def run(*command: str, **said: Any) -> None:
        commands.append(command)
        if command[0] == "prune":
            Path(option(command, "--out")[0]).mkdir()

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(train, "randomised", lambda like, out: out.mkdir())
    only = ["fresh", "small", "middle", "medusa", "hydra"]
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "README.md").write_text("its card")
    train.all_of(arguments(tmp_path, only=only, changes=["rows=24", "steps=1e2"]))
    outs = [Path(option(each, "--out")[0]).name for each in commands]
    assert outs == ["medusa", "middle-unfinished", "middle", "small-unfinished", "small", "fresh"]
    trained = [each for each in commands if each[0] == "train"]
    assert [each[1] for each in trained] == ["medusa", "sps", "sps", "sps"]
    assert all(option(each, "--set")[:2] == ["rows=24", "steps=1e2"] for each in trained)
    assert option(trained[-1], "--set")[2:] == [
        f"shape={{model: {tmp_path}/fresh-begun}}",
        "steps=200",
    ]


def test_several_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers come first; then as many as are asked for, each with a file of what it says. One
    that fails is told of, and what has not begun doesn't begin."""
    import train

    both = threading.Barrier(2, timeout=30)
    commands: list[str] = []

    def run(*command: str, log: Any = None) -> None:
        commands.append(command[1])
        log.write(command[1])
        both.wait()  # passes where two are there
        if command[1] == "medusa":
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(train, "write_answers", lambda name, given: commands.append(name))
    with pytest.raises(subprocess.CalledProcessError):
        train.all_of(arguments(tmp_path, only=["medusa", "hydra"], jobs=2))
    assert commands[0] == "medusa" and sorted(commands[1:]) == ["hydra", "medusa"]
    assert (tmp_path / "hydra.log").read_text() == "hydra"


def test_the_answers_are_the_trainings_own(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a training of these settings would write first: it reads them."""
    import answers

    import train
    from foretoken.train import answers as writing
    from foretoken.train.data import read_conversations
    from foretoken.train.job import Job
    from foretoken.train.recipe import read_recipe
    from foretoken.train.run import make

    pytest.importorskip("accelerate")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in WORDS))
    changes = {name: SMALL[name] for name in ("length", "max_tokens", "held", "distinct")}
    given = arguments(tmp_path, target=str(checkpoints[0]), data=str(prompts))
    out = train.folder("medusa", given)
    words = ["--target", given.target, "--data", given.data, "--out", str(out)]
    words += ["--source", train.SOURCE]
    sets = [f"{name}={value}" for name, value in changes.items()]
    monkeypatch.setattr(sys, "argv", ["answers.py", *words, *sets])
    answers.main()
    names = sorted(path.name for path in (tmp_path / "answers").iterdir())
    assert names == ["answers-00000.npz", "target@1"]
    monkeypatch.setattr(writing._Writer, "_answers", None)
    recipe = read_recipe(train.HERE / "medusa.yaml", {**changes, "rows": 1, "steps": 1})
    asked_of = read_conversations(prompts)
    make(Job("medusa", given.target, asked_of, recipe, out, source=train.SOURCE, show=False))


@pytest.mark.parametrize("jobs", [1, 2])
def test_nothing_begins_after_a_failure(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which would keep its error back for hours."""
    import train

    commands: list[str] = []
    both = threading.Barrier(jobs, timeout=30)

    def run(*command: str, **said: Any) -> None:
        commands.append(command[1])
        both.wait()
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(train, "run", run)
    monkeypatch.setattr(train, "write_answers", lambda name, given: None)
    only = ["eagle3", "medusa", "hydra", "mtp"]
    with pytest.raises(subprocess.CalledProcessError):
        train.all_of(arguments(tmp_path, only=only, jobs=jobs))
    assert sorted(commands) == only[:jobs]


def test_all_trainings_share_their_answers(recipe: Path) -> None:
    """So the recipes agree on what answers are written by, and on those that are held out."""
    read = {file.stem: read_recipe(file) for file in recipe.glob("*.yaml")}
    assert len(read) == 6
    for name in ("length", "max_tokens", "temperature", "held", "distinct"):
        assert len({getattr(each, name) for each in read.values()}) == 1, name

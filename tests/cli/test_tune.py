"""`foretoken tune`: what it writes is used by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foretoken import LLM, ForetokenError
from foretoken.bench.measure import costs
from foretoken.bench.plan import method_config
from foretoken.cli.commands import app
from foretoken.cli.options import ModelOptions
from foretoken.cli.tune import _config, _fitting, _show
from foretoken.config import build
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.tune.options import Candidate, Tuner
from foretoken.tuned import read_tuned, tuned_path

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast memory is read has a test of its own, and decides nothing here."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)


def test_from_the_command_line_to_the_engine(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """The file has the model's name; the engine and the benchmark know it by this name."""
    pytest.importorskip("optuna")
    prompts = tmp_path / "some.jsonl"
    texts = {"a": "Hello Hello Hello", "b": "Hello " * 20_000}  # the other one doesn't fit
    lines = [{"id": task, "task": task, "turns": [text]} for task, text in texts.items()]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = CliRunner().invoke(
        app,
        [
            "tune",
            "--model",
            str(checkpoints[0]),
            "--method",
            "pld",
            "--prompts",
            str(prompts),
            "--trials",
            "2",
            "--finalists",
            "1",
            "--rounds",
            "1",
            "--max-tokens",
            "8",
        ],
    )
    assert run.exit_code == 0, run.output
    assert "1 of 2 prompts leave no room for an answer" in run.stderr
    name = f"{checkpoints[0].name}-pld"
    kept = json.loads(tuned_path(name).read_text("utf-8"))
    assert kept["name"] == name and kept["model"] == str(checkpoints[0])
    built = build({"tuned": name, "prompt_lookup_max": 6})
    drafter, method = built.drafter, built.name
    assert isinstance(drafter, PromptLookup) and method == "pld"
    assert drafter.prompt_lookup_max == 6, "what stands beside the name wins"
    assert method_config(f"tuned:{name}", None, None) == kept["speculative_config"]
    with pytest.raises(ForetokenError, match="Did you mean"):
        read_tuned(f"{name}x")


def test_a_draft_model_beside_the_command(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by a relative path, it is found from another folder; and Ctrl-C keeps the best so far,
    said in the file and below it."""
    pytest.importorskip("optuna")
    predicted, left = Tuner.predicted, iter(range(2))

    def interrupted(self: Tuner, config: dict[str, Any]) -> Candidate:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return predicted(self, config)

    monkeypatch.setattr(Tuner, "predicted", interrupted)
    monkeypatch.chdir(checkpoints[1].parent)
    prompts = tmp_path / "some.jsonl"
    prompts.write_text(json.dumps({"id": "1", "task": "a", "turns": ["Hello Hello Hello"]}))
    draft = f"./{checkpoints[1].name}"
    arguments = ["tune", "--model", str(checkpoints[0]), "--draft-model", draft, "--name", "mine"]
    arguments += ["--prompts", str(prompts), "--max-tokens", "4", "--backend", "plain"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Interrupted after 2 candidates; the best by prediction" in done.stderr
    kept = json.loads(tuned_path("mine").read_text("utf-8"))
    assert kept["finished"] is False and kept["timed"] == []
    assert kept["speculative_config"]["model"] == str(checkpoints[1])
    monkeypatch.chdir(tmp_path)
    assert (
        LLM(checkpoints[0], backend="plain", speculative_config={"tuned": "mine"}).method == "sps"
    )


@pytest.mark.parametrize("given", [("--out", "best"), ("--name", "best.json")])
def test_names_and_paths_are_told_apart(given: tuple[str, str]) -> None:
    """Before anything is searched, as what was found could not be used."""
    done = CliRunner().invoke(app, ["tune", "--method", "pld", *given])
    assert done.exit_code == 1 and f"{given[0]} is {given[1]}" in done.output


def test_prompts_that_just_fit() -> None:
    """Where none does all are kept, of which the engine says what is wrong."""
    assert _fitting([[1] * 3, [1] * 4], 3) == [[1] * 3]
    assert _fitting([[1] * 3, [1] * 4], 2) == [[1] * 3, [1] * 4]


def test_a_bundled_models_draft_model() -> None:
    """It is taken where none is named; of another target one must be."""
    assert _config(ModelOptions(), "mini", None, None) == {"method": "sps", "model": "mini-draft"}
    assert _config(ModelOptions(), "mini", "pld", None) == {"method": "pld"}
    with pytest.raises(ForetokenError, match="--draft-model"):
        _config(ModelOptions(), "other", None, None)


def test_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The fastest first, what was changed of each, and how to use it."""
    options = {"method": "sps", "model": "x"}
    rows = [
        {"tokens_per_second": 40.0, "speedup": 0.8, "options": options},
        {"tokens_per_second": 45.0, "speedup": 0.9, "options": {**options, "depth": 3}},
    ]
    _show({"timed": rows, "speedup": 0.9}, Path("a.json"), "mine")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["45.0", "0.90", "depth=3"],
        ["40.0", "0.80", "the", "defaults"],
    ]
    assert "Plain decoding is faster than any of these." in lines
    assert lines[-1].strip() == 'speculative_config={"tuned": "mine"}'
    _show({"timed": rows, "speedup": 1.1}, Path("a.json"), None)
    shown = capsys.readouterr().out
    assert "Plain decoding is faster" not in shown and '{"tuned": "a.json"}' in shown

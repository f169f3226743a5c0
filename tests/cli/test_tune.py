"""`foretoken tune`: what it writes is used by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foretoken import ForetokenError
from foretoken.bench.plan import method_config
from foretoken.cli.commands import app
from foretoken.config import build
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.tuned import read_tuned, tuned_path

pytestmark = pytest.mark.usefixtures("cache")


def test_from_the_command_line_to_the_engine(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """The file has the model's name; the engine and the benchmark know it by this name."""
    pytest.importorskip("optuna")
    prompts = tmp_path / "some.jsonl"
    prompts.write_text(json.dumps({"id": "1", "task": "a", "turns": ["Hello Hello Hello"]}))
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


@pytest.mark.parametrize("given", [("--out", "best"), ("--name", "best.json")])
def test_names_and_paths_are_told_apart(given: tuple[str, str]) -> None:
    """Before anything is searched, as what was found could not be used."""
    done = CliRunner().invoke(app, ["tune", "--method", "pld", *given])
    assert done.exit_code == 1 and f"{given[0]} is {given[1]}" in done.output

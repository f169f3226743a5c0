"""`foretoken tune`: it finds the fastest that it timed, which is kept, and used by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.bench.plan import method_config
from foretoken.cli.commands import app
from foretoken.config import build
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.engine import costs
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair
from foretoken.testing.checks import PROMPTS
from foretoken.tune.options import Tuner, tune
from foretoken.tuned import read_tuned, tuned_path

SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CONFIG = {"method": "pld", "prompt_lookup_max": 2}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_fastest_that_was_timed(pair: Pair) -> None:
    """Given options stay; the defaults are timed too; the answer is the first of all by speed."""
    pytest.importorskip("optuna")
    steps: list[int] = []
    tuner = Tuner(LLM(pair.target), CONFIG, PROMPTS[:2], SHORT)
    assert set(tuner.space) == {"num_speculative_tokens", "prompt_lookup_min"}
    found = tune(
        tuner, CONFIG, trials=4, finalists=2, rounds=2, seed=0, advance=lambda: steps.append(1)
    )
    speeds = {json.dumps(t["options"]): t["tokens_per_second"] for t in found["timed"]}
    assert max(speeds, key=speeds.__getitem__) == json.dumps(found["speculative_config"])
    assert json.dumps(CONFIG) in speeds and len(steps) == 4 + 2 + 1
    assert all(json.loads(options)["prompt_lookup_max"] == 2 for options in speeds)


def test_nothing_to_tune(pair: Pair) -> None:
    with pytest.raises(ForetokenError, match="no option that can be tuned"):
        Tuner(LLM(pair.target), {"method": "autoregressive"}, PROMPTS[:1], SHORT)


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


class Counted(ModelTarget):
    """Counts the passes that score."""

    passes = 0

    def score(self, *arguments: Any) -> Any:
        Counted.passes += 1
        return super().score(*arguments)


def test_costs_are_measured_once(pair: Pair, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 12 passes, of a fast model more in no time; then a second one tells whether it holds."""
    monkeypatch.setattr(costs, "ModelTarget", Counted)
    monkeypatch.setattr(costs, "_ENOUGH", 0.0)  # as if each pass took long
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: True)
    config = {"method": "auto", "model": pair.draft}

    def passes() -> int:
        Counted.passes = 0
        LLM(pair.target, speculative_config=config)
        return Counted.passes

    first = passes()
    kept = {path: path.read_text("utf-8") for path in cache.rglob("*.json")}
    assert 2 < first <= 12
    assert passes() == 2
    assert {path: path.read_text("utf-8") for path in cache.rglob("*.json")} == kept
    monkeypatch.setattr(costs, "_agree", lambda ms, kept: False)
    assert passes() == 2 + first
    now = {path: path.read_text("utf-8") for path in cache.rglob("*.json")}
    assert now.keys() == kept.keys() and all(now[path] != kept[path] for path in kept)


def test_what_is_kept_must_agree() -> None:
    """A machine that was busy, or is now, shows it by half as much again."""
    assert costs._agree(10.0, 14.0) and costs._agree(14.0, 10.0)
    assert not costs._agree(10.0, 16.0) and not costs._agree(16.0, 10.0)

"""Options that commands share: one declaration, and every command acts on each or refuses it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from foretoken import LLM, ForetokenError
from foretoken.cli.commands import app
from foretoken.cli.options import Drafting, ModelOptions, acceptance, numbers
from foretoken.cli.tune import _config
from foretoken.engine.stats import AcceptanceStats

Pair = tuple[Path, Path]
COMMANDS = ("generate", "chat", "bench", "tune", "certify", "demo")


def run(*arguments: object, typed: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=typed)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_load_a_target_share_its_options(name: str) -> None:
    """Each has every one of them, under the same names."""
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    names = {option for param in command.params for option in param.opts}
    wanted = {f"--{field.name.replace('_', '-')}" for field in fields(ModelOptions)}
    assert wanted | {"-sc"} <= names


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The keyword arguments of each `LLM` that is loaded from a folder; loading is refused."""
    calls: list[dict[str, Any]] = []

    def load(self: LLM, model: Any, **given: Any) -> None:
        calls.append(given)
        raise ForetokenError("Not loaded.")

    monkeypatch.setattr(LLM, "__init__", load)
    return calls


GIVEN = {
    "generate": ("Hello",),
    "chat": (),
    "bench": ("--suite", "bundled", "--methods", "pld"),
    "tune": ("--method", "pld"),
    "certify": ("--method", "pld"),
    "demo": (),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_target_gets_what_was_given(
    name: str,
    loads: list[dict[str, Any]],
    checkpoints: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Precision, device, backend, context, threads and trust, whatever the command."""
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.chdir(tmp_path)
    how = "--dtype float64 --device cpu --backend plain --threads 1 --max-model-len 300"
    how += " --kv-cache-memory 64MiB"
    found = run(name, *GIVEN[name], "--model", checkpoints[0], *how.split(), "--trust-remote-code")
    assert found.exit_code == 1 and "Not loaded." in found.stderr, found.output
    [given] = loads
    got = [given[key] for key in ("dtype", "device", "backend", "max_model_len")]
    assert got == ["float64", "cpu", "plain", 300]
    assert given["kv_cache_memory"] == "64MiB"
    assert given["trust_remote_code"] is True and threads == [1]


@pytest.mark.parametrize("name", ["generate", "chat"])
def test_a_config_as_json_decodes(
    name: str, loads: list[dict[str, Any]], checkpoints: Pair
) -> None:
    """-sc holds the method's options; single options win over it."""
    config = {"method": "sps", "model": "x", "num_speculative_tokens": 3}
    prompt = ["Hello"] if name == "generate" else []
    run(name, *prompt, "-sc", json.dumps(config), "--draft-model", checkpoints[1])
    assert loads[0]["speculative_config"] == {**config, "model": str(checkpoints[1])}


def test_a_config_as_json_is_tuned(checkpoints: Pair) -> None:
    """`tune` takes the method that -sc names, where --method names none."""
    found = run("tune", "--model", checkpoints[0], "-sc", '{"method": "autoregressive"}')
    assert found.exit_code == 1
    assert "'autoregressive' has no option that can be tuned" in found.stderr


def test_demo_refuses_a_method(tmp_path: Path) -> None:
    """What it compares is fixed, and the sentence says what takes a method."""
    out = tmp_path / "out"
    found = run("demo", "--out", out, "-sc", '{"method": "pld"}')
    assert found.exit_code == 1 and "foretoken bench" in found.stderr and not out.exists()


@pytest.mark.parametrize("method", ["sps", "small_lm", "cs_drafting", "pld+sps", "online", "tli"])
def test_a_draft_model_is_asked_for(method: str) -> None:
    """For every method with a small model in it, before anything is loaded."""
    with pytest.raises(ForetokenError, match="--draft-model mini-draft"):
        ModelOptions().config(Drafting(method))
    config = ModelOptions().config(Drafting(method, "x", 3))
    assert config == {"method": method, "model": "x", "num_speculative_tokens": 3}


def test_nothing_given_is_no_config() -> None:
    """`LLM` then decodes plainly."""
    assert ModelOptions().config(Drafting()) is None


def test_single_options_win() -> None:
    """Over the same ones in -sc, each by itself; the others of -sc stay."""
    given = ModelOptions(
        speculative_config='{"method": "sps", "model": "x", "num_speculative_tokens": 3, "a": 1}'
    )
    both = {"method": "mcsd", "model": "y", "num_speculative_tokens": 5, "a": 1}
    assert given.config(Drafting("mcsd", "y", 5)) == both
    assert given.config(Drafting(num_speculative_tokens=5)) == {
        **both,
        "method": "sps",
        "model": "x",
    }
    named = ModelOptions(speculative_config='{"method": "sps", "draft_model": "x"}')
    assert named.config(Drafting(draft_model="y")) == {"method": "sps", "model": "y"}
    parts = '{"method": "pld+draft_model", "draft_model": {"num_speculative_tokens": 3}}'
    config = ModelOptions(speculative_config=parts).config(Drafting(draft_model="y"))
    assert config == {
        "method": "pld+draft_model",
        "draft_model": {"num_speculative_tokens": 3},
        "model": "y",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_gguf_file_of_the_model(name: str, loads: list[dict[str, Any]], tmp_path: Path) -> None:
    """Taken where there is one model, and refused where each has a name of its own."""
    with contextlib.chdir(tmp_path):
        done = run(name, *GIVEN[name], "--model", "org/name", "--gguf-file", "a.gguf")
    if name in ("bench", "demo"):
        assert "--gguf-file goes with a command that loads one model" in done.stderr
    else:
        assert loads[0]["gguf_file"] == "a.gguf"


@pytest.mark.parametrize("name", ["bench", "demo"])
def test_a_backend_of_the_draft_model_is_not_left_out(name: str, tmp_path: Path) -> None:
    """Where it isn't read it is refused, with what to give instead."""
    with contextlib.chdir(tmp_path):
        done = run(name, *GIVEN[name], "--draft-backend", "q4")
    assert "--draft-backend goes with a command that runs one method" in done.stderr
    assert '"draft_backend": "q4"}' in done.stderr


def test_weights_memory(checkpoints: Pair, tmp_path: Path) -> None:
    """It reaches the model, which says what it needs; commands that can't obey it refuse it."""
    for command in (
        ["generate"],
        ["bench", "--methods", "pld", "--limit", "1", "--out", str(tmp_path / "run")],
    ):
        given = [*command, "--model", str(checkpoints[0]), "--weights-memory", "1KiB"]
        found = run(*given, *["hello"] * (command == ["generate"]))
        assert found.exit_code == 1 and "weights_memory" in found.output, found.output
    for command in ("demo", "recommend"):
        given = ["--model", str(checkpoints[0])] * (command == "recommend")
        found = run(command, *given, "--weights-memory", "4GiB")
        assert found.exit_code == 1 and "--weights-memory is for" in found.output, found.output


def test_tuned_options_are_whole(checkpoints: Pair, tmp_path: Path) -> None:
    """What a tuned name stands for counts: its draft model where a method asks for one, and its
    method where it is tuned once more."""
    tuned = {"method": "sps", "model": str(checkpoints[1]), "num_speculative_tokens": 2}
    (file := tmp_path / "mine.json").write_text(
        json.dumps({"schema": 1, "speculative_config": tuned})
    )
    given = ModelOptions(speculative_config=json.dumps({"tuned": str(file)}))
    assert given.config(Drafting("sps")) == tuned
    assert given.config(Drafting(num_speculative_tokens=3)) == {
        **tuned,
        "num_speculative_tokens": 3,
    }
    copied = {"method": "pld", "prompt_lookup_max": 2}
    file.write_text(json.dumps({"schema": 1, "speculative_config": copied}))
    assert _config(given, "mini", None, None) == copied


@pytest.mark.parametrize("text", ["", ",", "1,", "1,,4", "four", "inf", "-inf", "1,nan"])
def test_numbers_by_comma(text: str) -> None:
    """One sentence for all lists of numbers, which are finite and keep repeated ones."""
    assert numbers("0.5, 0.5,1", float, "--ranks") == [0.5, 0.5, 1.0]
    with pytest.raises(ForetokenError, match=r"--ranks is .*; give numbers by comma, as 1,4"):
        numbers(text, float, "--ranks")


@pytest.mark.parametrize("given", ["[1]", "3", '"pld"', "null"])
def test_a_config_is_an_object(given: str) -> None:
    with pytest.raises(ForetokenError, match="must be a JSON object, e"):
        ModelOptions(speculative_config=given).given_config()


def test_the_line_on_the_drafting() -> None:
    """How fast, and what became of the drafts where there were any."""
    stats = AcceptanceStats()
    stats.record(1, 0, 0, 0)
    assert acceptance(stats, 0.0) == "1 tokens"
    stats.record(3, 4, 2, 4)
    assert acceptance(stats, 0.5) == (
        "4 tokens · 8 tokens/s · mean acceptance length 2.00 · 50% of 4 drafted tokens accepted"
    )

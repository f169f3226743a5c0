"""The command `foretoken train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, dynamic_module_utils

import stored_models
from foretoken.cli import main
from trainings import WORDS

pytest.importorskip("accelerate")


SETTINGS = {"length": 96, "max_tokens": 32, "held": 3, "rows": 2, "steps": 2, "lr": "1e-3"}


def test_the_command(
    checkpoints: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`foretoken train` says what was reached; a wrong setting is one sentence."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in WORDS))
    command = ["train", "blockwise", "--target", str(checkpoints[0]), "--data", str(prompts)]
    command += ["--out", str(tmp_path / "out"), "--limit", "6"]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert not ended.value.code
    assert "2 steps · mean acceptance length" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main([*command, "--set", "lr"])
    assert ended.value.code == 1 and "--set takes name=value" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_no_prompts(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Cannot be asked for, and no number of them is taken from the end."""
    command = ["train", "medusa", "--target", "./nowhere", "--data", "none.jsonl", "--out", "none"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--limit", limit])
    assert ended.value.code == 2 and "--limit" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["shape={num_heads: 4", "decay=2024-13-45"])
def test_a_value_that_is_none(change: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Is one sentence, before any file is read."""
    command = ["train", "medusa", "--target", "./nowhere", "--data", "none.jsonl", "--out", "none"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--set", change])
    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert said.splitlines()[-1].startswith(f"foretoken: --set {change!r} has a value that can't")


def test_a_dry_run(
    checkpoints: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shapes and memory; nothing is read or written."""
    command = ["train", "eagle", "--target", str(checkpoints[0]), "--data", "none.jsonl"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--out", str(tmp_path / "out"), "--dry-run"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "fc.weight" in said and "GB  a process" in said
    with pytest.raises(SystemExit) as ended:
        main([*command, "--out", str(tmp_path / "out"), "--dry-run", "--source", "drafter"])
    assert ended.value.code and "can't write texts by itself" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "part"),
    [
        ("--shard", "the optimiser, a part"),
        ("--shard-target", "the target's layers, in 16 bits, a part"),
    ],
)
def test_a_dry_run_of_several_processes(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    part: str,
) -> None:
    """As torchrun starts them: shared out, it is reckoned for so many, and said once."""
    command = ["train", "eagle", "--target", str(checkpoints[0]), "--data", "none.jsonl"]
    command += ["--out", str(tmp_path / "out"), "--dry-run", option]
    said = []
    for processes, rank in (("1", "0"), ("8", "0"), ("8", "5")):
        monkeypatch.setenv("WORLD_SIZE", processes)
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit) as ended:
            main(command)
        out, error = capsys.readouterr()
        said.append(out)
        assert bool(ended.value.code) == ("this is the only one" in error) == (processes == "1")
    assert part in said[1] and not said[0] and not said[2]


HEADS = "shape={num_heads: 1, num_layers: 1, own_lm_heads: false}"


def test_code_that_comes_with_a_target(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs where it may, from the configuration to what serves; else the option is named. The
    folder knows it, as another model may be meant by the same files."""
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    target, out = stored_models.with_code(tmp_path / "own"), tmp_path / "out"
    AutoTokenizer.from_pretrained(checkpoints[0]).save_pretrained(target)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in WORDS))
    command = ["train", "medusa", "--target", str(target), "--data", str(prompts)]
    command += ["--out", str(out), "--device", "cpu", "--set", HEADS, "--set", "distinct=0.0"]
    for name, value in SETTINGS.items():
        command += ["--set", f"{name}={value}"]

    def said(*more: str) -> tuple[bool, str]:
        with pytest.raises(SystemExit) as ended:
            main([*command, *more])
        text = capsys.readouterr()
        return not ended.value.code, text.out + text.err

    trust = "--trust-remote-code"
    for more in ((), ("--dry-run",)):
        done, text = said(*more)
        assert not done and trust in text
    done, text = said(trust, "--dry-run")
    assert done and "GB  a process" in text
    done, text = said(trust)
    assert done and "2 steps · mean acceptance length" in text
    assert f'LLM("{target}", trust_remote_code=True, ' in (out / "README.md").read_text()
    note = json.loads((out / "training.json").read_text())
    assert note["trust_remote_code"] is True
    done, text = said(trust, "--set", "steps=3")
    assert done and "3 steps" in text
    note["trust_remote_code"] = False
    (out / "training.json").write_text(json.dumps(note))
    done, text = said(trust, "--set", "steps=4")
    assert not done and "trust_remote_code was False and is now True" in text

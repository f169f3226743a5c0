"""A drafter learns from a target that is shared out what it learns from a whole one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from foretoken import LLM, ForetokenError
from foretoken.models.hf import adapter
from foretoken.models.load import load_model
from foretoken.train import processes, run, shards, shared_target
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job
from foretoken.train.recipe import read_recipe
from train.test_processes import train, train_on_two
from train.test_run import weights
from train.test_shards import last_state
from trainings import WORDS, small_lm_job

pytest.importorskip("accelerate")

WATCHED = """
from train import test_shared_target
test_shared_target.watch(Path({out!r}))
"""
SHORT: dict[str, Any] = {"steps": 2, "evaluate_every": 2, "distinct": 0.0}


def watch(out: Path) -> None:
    """In a process of a launch: note what it holds of the target, and whether one was whole."""
    whole, begin, loaded = run._whole, run.run, list[bool]()

    def noting(job: Any) -> LLM:
        loaded.append(True)
        return whole(job)

    def beginning(setting: Any, subject: Any) -> Any:
        model = setting.model.model
        layers = list(adapter.layers_of(model).parameters())
        held = [p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in layers]
        rest = sum(not isinstance(p, DTensor) for p in model.parameters())
        about = {"layers": sum(p.numel() for p in layers), "held": sum(held), "rest": rest}
        file = out.with_suffix(f".held-{processes.rank()}")
        file.write_text(json.dumps({**about, "whole": bool(loaded)}))
        return begin(setting, subject)

    run._whole, run.run = noting, beginning


def train_shared(target: Path, prompts: Path, out: Path, **changes: Any) -> list[dict[str, Any]]:
    """What each of two processes held."""
    before = WATCHED.format(out=str(out))
    train_on_two(target, prompts, out, before=before, shard_target=True, **changes)
    return [json.loads(out.with_suffix(f".held-{rank}").read_text()) for rank in (0, 1)]


def check_held(held: list[dict[str, Any]]) -> None:
    """Half of every layer, and the vocabulary layers whole."""
    assert sum(each["held"] for each in held) == held[0]["layers"] == held[1]["layers"]
    assert all(each["held"] < 0.6 * each["layers"] and each["rest"] for each in held)


def lengths(out: Path) -> list[Any]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line).get("acceptance_length") for line in lines]


@pytest.fixture(scope="module")
def gpt2(checkpoints: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target that runs by transformers' code whether it is shared out or not."""
    numbers = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = GPT2Config(**numbers, initializer_range=0.2, bos_token_id=None, eos_token_id=None)
    GPT2LMHeadModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoints[0]).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts with answers."""
    path = tmp_path_factory.mktemp("answered") / "answered.jsonl"
    rows = [{"prompt": word, "completion": f"and then {word} again"} for word in WORDS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("method", ["eagle3", pytest.param("medusa", marks=pytest.mark.slow)])
def test_learned_from_as_from_a_whole_one(
    gpt2: Path, prompts: Path, tmp_path: Path, method: str
) -> None:
    """The same weights and estimates as by two processes with a whole target each, and by one with
    twice the accumulation; also where it goes on from a saved state, with the drafter shared out
    too. What is missing of the texts is written first, by whole ones that are let go."""
    changes: dict[str, Any] = {"method": method, "schedule": "constant", "warmup": 0.0}
    changes |= {"evaluate_every": 3, "distinct": 0.0}
    one, two, shared = (tmp_path / name for name in ("one", "two", "shared"))
    train(gpt2, prompts, one, accumulation=4, steps=6, **changes)
    train_on_two(gpt2, prompts, two, accumulation=2, steps=6, **changes)
    changes["accumulation"] = 2
    held = train_shared(gpt2, prompts, shared, steps=3, **changes)
    assert any(each["whole"] for each in held)  # one may find what the other has written
    check_held(held)
    held = train_shared(gpt2, prompts, shared, steps=6, shard=True, **changes)
    assert not any(each["whole"] for each in held)
    check_held(held)
    mine = last_state(shared)["weights"]
    for other in (one, two):
        theirs = last_state(other)["weights"]
        assert mine.keys() == theirs.keys()
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], rtol=1e-9, atol=1e-12)
        assert lengths(shared)[2] == pytest.approx(lengths(other)[2], rel=1e-9)
        assert lengths(shared)[5] == pytest.approx(lengths(other)[5], rel=1e-9)
    card = (shared / "README.md").read_text()
    assert "| estimated |" in card and "| served |" not in card and "nothing was served" in card
    assert "| served |" in (two / "README.md").read_text()


def test_the_files_own_texts(
    checkpoints: tuple[Path, Path], answered: Path, tmp_path: Path
) -> None:
    """No process ever has the target whole; estimates are made on the file's texts, which the
    folder notes, and counts over them are in the checkpoint."""
    out = tmp_path / "out"
    given = {"source": "fixed", **SHORT}
    held = train_shared(checkpoints[0], answered, out, **given)
    check_held(held)
    assert not any(each["whole"] for each in held) and not (out / "data").exists()
    assert lengths(out)[-1] >= 1
    assert "held-out answers of the file" in (out / "README.md").read_text()
    assert json.loads((out / "config.json").read_text())["notes"]["rates"]
    with pytest.raises(ForetokenError, match="estimated_on was 'fixed' and is now 'target'"):
        train(checkpoints[0], answered, out, **given)


def test_texts_and_states_that_are_there(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Those that one process wrote, natively, are read without a whole target; states are written
    by both, and then read by a training with a whole one."""
    out, states = tmp_path / "out", tmp_path / "states"
    train(checkpoints[0], prompts, out, **{**SHORT, "steps": 1})
    held = train_shared(checkpoints[0], prompts, out, states=states, **SHORT)
    check_held(held)
    assert not any(each["whole"] for each in held)
    files = {path: path.read_bytes() for path in states.iterdir()}
    assert files and (out / "README.md").exists()
    train(checkpoints[0], prompts, out, states=states, **{**SHORT, "steps": 3})
    assert {path: path.read_bytes() for path in states.iterdir()} == files


def test_one_process_shares_nothing_out(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(ForetokenError, match="the target out over several processes, and this is"):
        train(checkpoints[0], prompts, tmp_path, shard_target=True)


def test_a_target_that_is_trained_itself(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    with pytest.raises(ForetokenError, match="medusa2 trains the target itself"):
        train(checkpoints[0], prompts, tmp_path, shard_target=True, method="medusa2")


@pytest.mark.parametrize("method", ["glide", "parallel_prompt"])
def test_what_needs_more_than_states(
    checkpoints: tuple[Path, Path],
    answered: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    """Drafters that attend to the target's keys, or run it, are refused before any pass."""

    def passes(*given: Any) -> None:
        raise AssertionError("a pass that not all processes run")

    monkeypatch.setattr(shards, "check", lambda *given: None)
    monkeypatch.setattr(processes, "as_first", lambda value: value)
    monkeypatch.setattr(FrozenTarget, "_read", passes)
    monkeypatch.setattr(
        shared_target, "load", lambda job: load_model(job.target, dtype="float64", backend="plain")
    )
    with pytest.raises(ForetokenError, match="leave out states, or shard_target"):
        train(
            checkpoints[0],
            answered,
            tmp_path / "out",
            shard_target=True,
            method=method,
            source="fixed",
        )
    assert not list((tmp_path / "out").glob("held-out")) + list(tmp_path.glob("out/training.json"))


def test_layers_that_cant_be_shared_out(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in no list, and those that torch refuses; each is one sentence with the remedy."""

    def refused(*given: Any, **options: Any) -> None:
        raise ValueError("fully_shard doesn't support scalar parameters")

    job = small_lm_job(checkpoints[0], tmp_path)
    monkeypatch.setattr(processes, "join", lambda device: None)
    monkeypatch.setattr(shared_target, "init_device_mesh", lambda *given: None)
    monkeypatch.setattr(shared_target, "fully_shard", refused)
    with pytest.raises(ForetokenError, match=r"can't be shared out \(.*scalar.*leave shard_target"):
        shared_target.load(job)
    monkeypatch.setattr(adapter, "layers_of", lambda model: None)
    with pytest.raises(ForetokenError, match="has no list of decoder layers"):
        shared_target.load(job)


@pytest.mark.slow
def test_the_processes_of_a_launch_train_twice(
    checkpoints: tuple[Path, Path], answered: Path, tmp_path: Path
) -> None:
    """The second time the processes meet anew, for a target that is shared out anew."""
    first, second = tmp_path / "first", tmp_path / "second"
    given = {"source": "fixed", "method": "eagle", "shard_target": True, **SHORT}
    train_on_two(checkpoints[0], answered, first, again=second, **given)
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert (second / "README.md").exists()


def job_of(target: Path, out: Path, **recipe: Any) -> Job:
    return Job("medusa", str(target), [], read_recipe("medusa", recipe), out, source="fixed")


def test_an_adapter_beside_a_model_is_refused(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """As where it isn't shared out, though no other model is loaded."""
    target = tmp_path / "target"
    shutil.copytree(checkpoints[0], target)
    (target / "adapter_config.json").write_text("{}")
    with pytest.raises(ForetokenError, match="holds an adapter beside a model"):
        shared_target.load(job_of(target, tmp_path / "out"))


def test_a_context_is_the_models_own(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be longer than its configuration says, and is what texts were written by."""
    model = load_model(checkpoints[0])
    monkeypatch.setattr(shared_target, "load", lambda job: model)
    monkeypatch.delattr(run, "config_of")
    longest = []
    for length in (200, 4 * model.max_length):
        with run._shared_out(job_of(checkpoints[0], tmp_path, length=length)) as llm:
            longest.append(llm.engine.target.max_length)
    assert longest == [200, model.max_length]

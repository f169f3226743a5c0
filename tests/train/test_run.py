"""Training end to end on a tiny target: resumed after a kill, checkpoints, cards, refusals."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.medusa import MedusaHeads
from foretoken.drafters.mlp_speculator import MlpSpeculatorStages
from foretoken.files import held
from foretoken.testing import Pair
from foretoken.train import run as running
from foretoken.train.data import read_conversations
from foretoken.train.frozen import FrozenTarget
from foretoken.train.job import Job, Outcome
from foretoken.train.recipe import SCHEDULES, read_recipe
from foretoken.train.run import finish, initial_module, make, note_run, prepare
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM
from lessons import written
from trainings import PROMPTS, SMALL, small_lm_job, train_small_lm, tuned

pytest.importorskip("accelerate")

HEADS: dict[str, Any] = {
    "length": 96,
    "max_tokens": 32,
    "held": 3,
    "rows": 2,
    "steps": 8,
    "evaluate_every": 3,
    "patience": 9,
    "matrix_lr": 0.01,
}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def train_heads(
    target: Path, prompts: Path, out: Path, keep_every: int | None = None, **changes: Any
) -> tuple[Outcome, list[int]]:
    """A training of Medusa's heads, and the steps that it took."""
    steps: list[int] = []
    outcome = make(
        Job(
            "medusa",
            str(target),
            read_conversations(prompts),
            read_recipe("medusa", {**HEADS, **changes}),
            out,
            every=0.0,
            keep_every=keep_every,
            show=False,
            report=lambda now: steps.append(now.step),
        )
    )
    return outcome, steps


def test_a_model_is_not_trained_over(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """The folder of a model, the target's own for one, is no place for a training: its weights
    would be replaced. Nothing is written there."""
    shutil.copytree(checkpoints[0], out := tmp_path / "model")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(ForetokenError, match=r"config\.json wasn't written by a training"):
        train_heads(out, prompts, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(ForetokenError, match=r"README.md wasn't written by a training"):
        train_heads(checkpoints[0], prompts, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from train import test_run
test_run.train_heads(Path({target!r}), Path({prompts!r}), Path({out!r}))
"""


@pytest.mark.slow
def test_killed_and_resumed(checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path) -> None:
    """kill -9 now and then: in the end the very weights of a run that was never stopped."""
    straight = tmp_path / "straight"
    outcome, _ = train_heads(checkpoints[0], prompts, straight)
    names = {"tests": str(Path(__file__).parents[1]), "target": str(checkpoints[0])}
    code = CHILD.format(**names, prompts=str(prompts), out=str(tmp_path / "killed"))
    states = tmp_path / "killed" / "resume"
    for step in (1, 4):
        child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        try:
            _wait_for(states / f"step-{step:08d}", states, child)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    assert not (tmp_path / "killed" / "README.md").exists()
    again, steps = train_heads(checkpoints[0], prompts, tmp_path / "killed")
    assert again.progress == outcome.progress and again.progress.step == HEADS["steps"]
    assert all(step > 4 for step in steps)
    mine, theirs = weights(straight), weights(tmp_path / "killed")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def _wait_for(state: Path, folder: Path, child: Any) -> None:
    """Until this state or a later one is there."""
    end = time.monotonic() + 120
    while not any(path.name >= state.name for path in folder.glob("step-*")):
        assert child.poll() is None and time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("method", ["medusa", "hydra", "blockwise", "mlp_speculator"])
def test_each_recipe_learns(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, method: str
) -> None:
    """The loss falls, served is as estimated, and card and checkpoint say so."""
    seen: list[float] = []
    recipe = read_recipe(method, {**HEADS, "steps": 30, "evaluate_every": 10, "lr": 3e-3})
    outcome = make(
        Job(
            method,
            str(checkpoints[0]),
            read_conversations(prompts),
            recipe,
            tmp_path / "out",
            show=False,
            report=lambda now: seen.append(now.loss),
        )
    )
    assert sum(seen[-5:]) < 0.9 * sum(seen[:5])
    expected, served = outcome.expected.acceptance_length, outcome.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=0.01) and served > 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{expected:.3f}" in card and f"{served:.3f}" in card
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["foretoken_method"] == method and config["notes"]["rates"]
    llm = LLM(checkpoints[0], speculative_config={"method": method, "model": tmp_path / "out"})
    params = SamplingParams(temperature=0, max_tokens=24)
    plain = LLM(checkpoints[0]).generate("the sea", params)[0].token_ids
    assert llm.generate("the sea", params)[0].token_ids == plain


def test_the_estimate_of_a_large_tree(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Serving makes room for all of its nodes, which are more than a target has room for alone."""
    shape = {"num_heads": 1, "num_layers": 1, "own_lm_heads": False}
    serving = {"tree": [[rank] for rank in range(90)]}
    changes: dict[str, Any] = {"steps": 1, "shape": shape, "serving": serving, "distinct": 0.0}
    changes |= {"length": 240, "max_tokens": 160}
    outcome, _ = train_heads(checkpoints[0], prompts, tmp_path, **changes)
    expected, served = outcome.expected.acceptance_length, outcome.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=1e-6)


def test_the_estimate_of_a_tree_that_is_planned_afterwards(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Its rates are counted at the end; the card's estimate is of the planned tree."""
    serving = {"tree": "planned", "tree_nodes": 3}
    outcome, _ = train_heads(checkpoints[0], prompts, tmp_path, steps=1, serving=serving)
    expected, served = outcome.expected.acceptance_length, outcome.served.mean_acceptance_length
    assert outcome.progress.best > 0 and expected == pytest.approx(served, rel=0.01)


def test_training_stops_early(
    checkpoints: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a better estimate for `patience` times; the best weights are what is left. With more
    patience it goes on, and with more steps alone nothing is trained, which the log says."""
    given = {"steps": 60, "lr": 1e-12, "evaluate_every": 2}
    outcome, _ = train_heads(checkpoints[0], prompts, tmp_path / "out", patience=2, **given)
    assert outcome.progress.step == 6 and outcome.progress.stale == 2
    assert "Nothing is trained" not in caplog.text
    longer = {**given, "steps": 90}
    _, steps = train_heads(checkpoints[0], prompts, tmp_path / "out", patience=2, **longer)
    assert not steps and "it needs more patience (its last 2 estimates were no" in caplog.text
    outcome, steps = train_heads(checkpoints[0], prompts, tmp_path / "out", patience=4, **given)
    assert steps == [7, 8, 9, 10] and outcome.progress.stale == 4


def test_another_trainings_folder_is_refused(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """The message names the setting that differs, with both values."""
    train_heads(checkpoints[0], prompts, tmp_path / "out", steps=1, lr=1e-3)
    with pytest.raises(ForetokenError, match=r"lr was 0.001 and is now 0.5; give another --out"):
        train_heads(checkpoints[0], prompts, tmp_path / "out", steps=1, lr=0.5)


def test_a_folder_in_which_another_process_trains(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    with held(tmp_path), pytest.raises(ForetokenError, match=f"use by process {os.getpid()}"):
        train_heads(checkpoints[0], prompts, tmp_path)


def test_processes_of_one_launch_share_the_folder(
    checkpoints: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`accelerate launch` starts several with one --out; the first one holds it for all."""
    monkeypatch.setenv("RANK", "1")
    with held(tmp_path):
        assert train_heads(checkpoints[0], prompts, tmp_path, steps=1)[1] == [1]


def test_what_a_training_leaves(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """A line a step, checkpoints that stay; a finished one goes on where it has more steps."""
    train_heads(checkpoints[0], prompts, tmp_path, keep_every=3, lr=1e-3)
    found = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in found] == list(range(1, 9))
    assert all(line["loss"] > 0 and line["lr"] > 0 and line["learned"] > 0 for line in found)
    assert [line["step"] for line in found if "acceptance_length" in line] == [3, 6, 8]
    places = sorted((tmp_path / "checkpoints").iterdir())
    assert [place.name for place in places] == ["step-00000003", "step-00000006"]
    one, two = (weights(place) for place in places)
    assert one.keys() == two.keys() and any(not torch.equal(one[n], two[n]) for n in one)
    LLM(checkpoints[0], speculative_config={"method": "medusa", "model": places[0]})
    outcome, steps = train_heads(checkpoints[0], prompts, tmp_path, steps=11, lr=1e-3)
    assert steps == [9, 10, 11] and outcome.progress.step == 11
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 11
    with pytest.raises(ForetokenError, match=r"lr was 0.001 and is now 0.002"):
        train_heads(checkpoints[0], prompts, tmp_path, steps=11, lr=2e-3)
    with pytest.raises(ForetokenError, match="keep_every is 0"):
        train_heads(checkpoints[0], prompts, tmp_path, keep_every=0)


LEFT: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_steps_follow_the_schedule(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path, schedule: str
) -> None:
    """Of the new number; another schedule is another training."""
    given = {"lr": 1e-3, "matrix_lr": 0.0, "warmup": 0.0, "floor": 0.0, "schedule": schedule}
    for total in (3, 6):
        train_heads(checkpoints[0], prompts, tmp_path, steps=total, **given)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rates = [
        1e-3 * LEFT[schedule]((step - 1) / (total - 1)) for total in (3, 6) for step in range(6)
    ]
    assert [line["step"] for line in lines] == list(range(1, 7))
    assert [line["lr"] for line in lines[1:]] == pytest.approx([*rates[1:3], *rates[9:]])
    other = SCHEDULES[SCHEDULES.index(schedule) - 1]
    refusal = f"in .*: schedule was '{schedule}' and is now '{other}'; give another --out\\.$"
    with pytest.raises(ForetokenError, match=refusal):
        train_heads(checkpoints[0], prompts, tmp_path, steps=6, **{**given, "schedule": other})


def test_another_target_of_the_same_shape(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Neither its texts nor its training are gone on with; the same target's in another place
    are."""
    out, other = tmp_path / "out", tuned(checkpoints[0], tmp_path / "other")
    train_heads(checkpoints[0], prompts, out, steps=1)
    with pytest.raises(ForetokenError, match="was made for weights"):
        train_heads(other, prompts, out, steps=2)
    block = out / "data" / "answers-00000.npz"
    block.unlink()
    with pytest.raises(ForetokenError, match="weights was"):
        train_heads(other, prompts, out, steps=2, length=96)
    block.unlink(missing_ok=True)
    moved = shutil.copytree(checkpoints[0], tmp_path / "moved")
    assert train_heads(moved, prompts, out, steps=2)[1] == [2]


def test_a_training_keeps_its_precision(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """The one that `auto` means is noted."""
    asked, note = read_conversations(prompts), tmp_path / "training.json"

    def train(steps: int, precision: str = "auto") -> int:
        recipe = read_recipe("medusa", {**HEADS, "steps": steps})
        given: dict[str, Any] = {"show": False, "device": "cpu", "precision": precision}
        return make(
            Job("medusa", str(checkpoints[0]), asked, recipe, tmp_path, **given)
        ).progress.step

    train(1)
    settings = json.loads(note.read_text())
    assert settings["precision"] == "float32"  # auto's, on this CPU
    note.write_text(json.dumps({**settings, "precision": "bfloat16"}))
    with pytest.raises(ForetokenError, match="precision was 'bfloat16' and is now 'float32'"):
        train(2)
    note.write_text(json.dumps(settings))
    with pytest.raises(ForetokenError, match="precision was 'float32' and is now 'bfloat16'"):
        train(2, "bfloat16")
    assert train(2, "float32") == 2


def test_one_process_trains_in_both_precisions(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """One after the other: accelerate keeps the first one's."""
    asked = read_conversations(prompts)
    recipe = read_recipe("medusa", {**HEADS, "steps": 1})
    losses: list[float] = []
    for precision in ("float32", "bfloat16", "float32"):
        make(
            Job(
                "medusa",
                str(checkpoints[0]),
                asked,
                recipe,
                tmp_path / str(len(losses)),
                show=False,
                device="cpu",
                precision=precision,
                report=lambda now: losses.append(now.loss),
            )
        )
    assert losses[0] == losses[2] != losses[1] == pytest.approx(losses[0], rel=0.05)


def test_a_target_that_transformers_runs_is_loaded_once(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """The one that writes is learned from too, whose head passes gradients."""
    numbers = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    target = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(**numbers, bos_token_id=None, eos_token_id=None)).save_pretrained(
        target
    )
    AutoTokenizer.from_pretrained(checkpoints[0]).save_pretrained(target)
    setting = prepare(small_lm_job(target, tmp_path / "out"))
    assert setting.model is setting.llm.model
    shape = {"num_heads": 1, "num_layers": 1, "own_lm_heads": False}
    recipe = read_recipe("medusa", {**SMALL, "shape": shape, "steps": 2})
    outcome = make(Job("medusa", str(target), PROMPTS, recipe, tmp_path / "heads", show=False))
    expected, served = outcome.expected.acceptance_length, outcome.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=1e-3)


def test_what_wrote_is_let_go(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Before the drafter is trained: the engine that stays has the cache of one text."""
    setting = prepare(small_lm_job(checkpoints[0], tmp_path))
    assert len(setting.llm.engine.target.cache.lengths) == 1


def test_what_makes_another_training(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Each setting by which something else would be learned; not where its files are, nor when
    they are written."""
    job, change = small_lm_job(checkpoints[0], tmp_path), dataclasses.replace

    def noted(job: Job, texts: str = "some") -> dict[str, Any]:
        on = SimpleNamespace(device=torch.device("cpu"))
        facts = Facts(32, 97, 2)
        setting: Any = SimpleNamespace(job=job, model=on, facts=facts, digest=texts)
        subject: Any = SimpleNamespace(identity={"source": "target"})
        return running._identity(setting, subject)

    def differing(now: dict[str, Any]) -> list[str]:
        return [name for name in now if now[name] != first[name]]

    first = noted(job)
    assert first["precision"] == "float32"  # the one that auto means
    others = {
        "method": change(job, method="medusa"),
        "weights": change(job, target=str(checkpoints[1])),
        "seed": change(job, seed=1),
        "precision": change(job, precision="bfloat16"),
        "trust_remote_code": change(job, trust_remote_code=True),
        "estimated_on": change(job, source="fixed", shard_target=True),
        "lr": change(job, recipe=change(job.recipe, lr=0.5)),
    }
    for name, other in others.items():
        assert differing(noted(other)) == [name]
    assert differing(noted(job, "others")) == ["texts"]
    assert not differing(noted(change(job, out=tmp_path / "a", every=1.0, keep_every=3)))


@pytest.mark.parametrize("seed", [-1, 10**12 + 1])
def test_a_seed_that_cannot_be(seed: int, tmp_path: Path) -> None:
    """It is told before hours of answers."""
    job = dataclasses.replace(small_lm_job(tmp_path, tmp_path / "out"), seed=seed)
    with pytest.raises(ForetokenError, match=rf"seed is {seed}; it must be from 0 to 1e\+12"):
        make(job)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("method", "settings", "more", "told"),
    [
        ("medusa", {"shape": {"num_head": 4}}, {}, "num_head"),
        ("eagle3", {"shape": {"capture": [0, 1, 99]}}, {}, "states after layer 99"),
        ("medusa", {"serving": {"tree_node": 4}}, {}, "tree_node"),
        ("eagle", {"objective": {"feature": 1.0}}, {}, "losses of logits too"),
        ("medusa", {}, {"source": "drafter"}, "can't write texts by itself"),
        ("medusa", {}, {"source": "targets"}, "Did you mean 'target'"),
        ("sps", {"objective": {"nll": 1.0}}, {"states": Path("states")}, "leave states out"),
    ],
    ids=["shape", "layers", "serving", "objective", "own texts", "source", "states"],
)
def test_what_cannot_be_is_told_before_anything_is_written(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    method: str,
    settings: dict[str, Any],
    more: dict[str, Any],
    told: str,
) -> None:
    """So no hours of answers are lost, and the folder is free for what was meant."""
    recipe = read_recipe(method, {**HEADS, **settings})
    job = Job(method, str(checkpoints[0]), PROMPTS, recipe, tmp_path / "out", **more)
    with pytest.raises(ForetokenError, match=told):
        make(job)
    assert not (tmp_path / "out").exists()


def test_a_setting_that_is_gone(tmp_path: Path) -> None:
    """Is one that differs."""
    note_run(tmp_path, {"method": "sps", "after": ["a"]})
    with pytest.raises(ForetokenError, match=r"after was \['a'\] and is now None"):
        note_run(tmp_path, {"method": "sps"})


def test_a_run_is_noted_in_a_new_folder(tmp_path: Path) -> None:
    """Also where no texts were written there before, as with the file's own."""
    note_run(tmp_path / "new" / "out", {"method": "sps"})
    with pytest.raises(ForetokenError, match="method was 'sps' and is now 'medusa'"):
        note_run(tmp_path / "new" / "out", {"method": "medusa"})


def test_a_checkpoint_like_any_other(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The loss falls, the estimate of a chain is what is served, transformers reads the folder."""
    outcome, losses = train_small_lm(checkpoints[0], tmp_path / "out", steps=30)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    expected, served = outcome.expected.acceptance_length, outcome.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=1e-3) and served > 1
    assert AutoTokenizer.from_pretrained(tmp_path / "out").vocab_size
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    ours = TrainedLM(Facts(0, theirs.config.vocab_size, 0), model=str(tmp_path / "out")).lm
    tokens = torch.arange(12)[None]
    assert torch.equal(theirs(tokens).logits, ours(tokens).logits)
    config = {"method": "sps", "model": tmp_path / "out"}
    params = SamplingParams(temperature=0, max_tokens=16)
    [output] = LLM(checkpoints[0], speculative_config=config).generate("the sea", params)
    assert output.token_ids == LLM(checkpoints[0]).generate("the sea", params)[0].token_ids


def test_a_files_own_texts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """In a new folder; the estimate is still that of the target's own answers."""
    said = {"role": "assistant", "content": "one two three " * 3}
    answered = [dataclasses.replace(each, whole=(*each.messages, said)) for each in PROMPTS]
    out = tmp_path / "new" / "out"
    outcome = make(
        Job(
            "sps",
            str(checkpoints[0]),
            answered,
            read_recipe("sps", SMALL),
            out,
            source="fixed",
            show=False,
        )
    )
    expected, served = outcome.expected, outcome.served
    assert expected.tokens == served.tokens > 0
    assert expected.acceptance_length == pytest.approx(served.mean_acceptance_length, rel=1e-3)


def test_the_estimate_of_drawn_chains(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """At temperature 1 the walk over sampled text is what serving takes, up to chance."""
    outcome, _ = train_small_lm(
        checkpoints[0],
        tmp_path / "out",
        temperature=1.0,
        held=3,
        max_tokens=40,
        shape={"model": str(checkpoints[1])},
    )
    expected, served = outcome.expected.acceptance_length, outcome.served.mean_acceptance_length
    assert expected == pytest.approx(served, rel=0.2) and expected > 1.5


def test_the_best_weights_are_the_checkpoints(pair: Pair, tmp_path: Path) -> None:
    """Not the last ones, where these had a smaller estimate."""
    heads = MedusaHeads(Facts.of(pair.target), num_heads=1).double()
    heads.save(tmp_path, {})
    best = {name: weight.clone() for name, weight in heads.state_dict().items()}
    with torch.no_grad():
        for weight in heads.parameters():
            weight.add_(1.0)
    job: Any = SimpleNamespace(out=tmp_path, recipe=SimpleNamespace(rows=2))
    llm = SimpleNamespace(tokenizer=None)
    setting: Any = SimpleNamespace(job=job, held_out=written(pair.target), llm=llm)
    subject: Any = SimpleNamespace(extra={})
    finish(setting, subject, heads, FrozenTarget(pair.target))
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], weight) for name, weight in best.items())


def test_a_seed_decides_what_a_training_begins_with(pair: Pair) -> None:
    """Whatever was drawn before."""
    facts, records = Facts.of(pair.target), {"target": written(pair.target)}
    subject: Any = SimpleNamespace(new_module=lambda: MlpSpeculatorStages(facts, num_heads=1))

    def begun(seed: int) -> torch.Tensor:
        job = SimpleNamespace(seed=seed)
        setting: Any = SimpleNamespace(job=job, records=records, facts=facts)
        module = initial_module(setting, subject, FrozenTarget(pair.target))
        return module.state_dict()["proj.0.weight"]

    first = begun(1)
    torch.randn(3)
    assert torch.equal(begun(1), first) and not torch.equal(begun(2), first)

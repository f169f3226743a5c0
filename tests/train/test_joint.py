"""Medusa-2: target and heads trained together."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.hydra import HydraHeads
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.engine.stats import AcceptanceStats
from foretoken.models.load import load_model
from foretoken.train import joint as training
from foretoken.train.job import Job, Outcome, Progress
from foretoken.train.joint import METHOD, JointModule, JointTraining
from foretoken.train.recipe import Recipe, read_recipe
from foretoken.train.run import make
from foretoken.trainable import head_losses
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Estimate
from foretoken.trainable.losses import Objective
from lessons import random_lesson
from trainings import PROMPTS, SMALL

pytest.importorskip("accelerate")


def test_the_loss_of_both(checkpoints: tuple[Path, Path]) -> None:
    """The new target's distance from the old one, and its heads' loss by their share, on the new
    target's states; the heads learn faster. The distance is told by sums."""
    old, lesson = load_model(checkpoints[0], backend="plain"), random_lesson(checkpoints[0], 0.0)
    torch.manual_seed(0)
    shape = {"num_heads": 2, "weight": 0.3, "faster": 5.0}
    joint = JointModule(Facts.of(old), model=str(checkpoints[0]), **shape)
    with torch.no_grad():
        for weight in joint.target.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
        new = dataclasses.replace(
            lesson, hidden={-1: joint.target.states(lesson)}, head=joint.target.head
        )
        p, q = (each.head(each.hidden[-1]).log_softmax(-1) for each in (lesson, new))
        apart = (p.exp() * (p - q)).sum(-1)
        same = p.argmax(-1) == q.argmax(-1)
        where = (lesson.weight[:, 1:] > 0) & (lesson.positions[:, 1:] > 0)
        apart, same = apart[:, :-1][where], same[:, :-1][where]
        goal = Objective({"nll": 1.0})
        counted_from_0 = joint.heads(new, goal)
        expected = apart.mean() + 0.3 * goal.decay * counted_from_0  # by the paper's powers, from 1
        assert joint(lesson, goal).item() == pytest.approx(expected.item(), rel=1e-4)
        told = joint.distance(lesson).tolist()
        counts = joint.count_held_out(lesson)
        assert torch.equal(counts, joint.heads.count_held_out(new))
        assert not torch.equal(counts, joint.heads.count_held_out(lesson))
    assert told == pytest.approx([apart.sum().item(), same.sum().item(), len(same)], rel=1e-4)
    assert apart.mean() > 0.001 and 0 < same.sum() < len(same)
    own = {id(weight) for weight in joint.heads.of_vocabulary()}
    assert own and own < {id(weight) for weight in joint.of_vocabulary()}
    groups = joint.parameter_groups()
    assert [group["factor"] for group in groups] == [1.0, 5.0]
    counts = [sum(weight.numel() for weight in group["params"]) for group in groups]
    assert counts == [sum(w.numel() for w in part.parameters()) for part in joint.children()]


def test_the_heads_loss_reaches_the_head_that_they_share(checkpoints: tuple[Path, Path]) -> None:
    """Its gradient is that of the loss's differences."""
    old, lesson = load_model(checkpoints[0], backend="plain"), random_lesson(checkpoints[0], 0.0)
    torch.manual_seed(0)
    shape = {"num_heads": 2, "own_lm_heads": False}
    joint = JointModule(Facts.of(old), model=str(checkpoints[0]), **shape).eval().double()
    lesson = dataclasses.replace(lesson, hidden={i: x.double() for i, x in lesson.hidden.items()})
    weight = joint.target.lm.get_output_embeddings().weight

    def loss() -> torch.Tensor:
        return joint.heads(joint.reread(lesson), Objective({"nll": 1.0}))

    loss().backward()
    way = torch.randn_like(weight)
    assert weight.grad is not None
    found = (weight.grad * way).sum().item()
    with torch.no_grad():
        weight += 1e-5 * way
        above = loss().item()
        weight -= 2e-5 * way
        below = loss().item()
    assert found == pytest.approx((above - below) / 2e-5, rel=1e-3) and abs(found) > 1e-3


def test_heads_of_a_checkpoint_begin_as_they_are(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """And not as the target's, as new ones do."""
    target = load_model(checkpoints[0], backend="plain")
    facts = Facts.of(target)
    MedusaHeads(facts, num_heads=1).save(tmp_path, {})
    joint = JointModule(facts, model=str(checkpoints[0]), heads=str(tmp_path))
    joint.copy_from(target)
    saved = load_file(tmp_path / "model.safetensors")
    for name, weight in joint.heads.state_dict().items():
        assert torch.equal(weight, saved[name])
    with pytest.raises(ForetokenError, match="hidden_size 32 and this target has 16"):
        JointModule(dataclasses.replace(facts, hidden_size=16), str(checkpoints[0]), str(tmp_path))


@pytest.mark.parametrize("own_lm_heads", [False, True])
def test_heads_as_others_publish_them(
    own_lm_heads: bool, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """FasterDecoding's folder doesn't say how many layers the target has."""
    facts = Facts.of(load_model(checkpoints[0], backend="plain"))
    theirs = MedusaHeads(facts, num_heads=2, own_lm_heads=own_lm_heads).state_dict()
    torch.save(theirs, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    shape = {"model": str(checkpoints[0]), "heads": str(tmp_path)}
    joint = JointModule.from_shape(facts, shape, "the recipe")
    for name, weight in joint.heads.state_dict().items():
        assert torch.equal(weight, theirs[name])
    with pytest.raises(ForetokenError, match="hidden_size 32 and this target has 16"):
        JointModule.from_shape(dataclasses.replace(facts, hidden_size=16), shape, "the recipe")


def test_heads_of_another_method(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    facts = Facts.of(load_model(checkpoints[0], backend="plain"))
    HydraHeads(facts).save(tmp_path, {})
    with pytest.raises(ForetokenError, match="method 'hydra', and medusa2 begins with heads of"):
        JointModule(facts, str(checkpoints[0]), str(tmp_path))


def test_both_are_read_again(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The estimate is of the heads on the new target's states."""
    facts, lesson = Facts.of(load_model(checkpoints[0])), random_lesson(checkpoints[0], 0.8)
    saved, read = (JointModule(facts, str(checkpoints[0]), num_heads=1).eval() for _ in range(2))
    with torch.no_grad():
        for weight in saved.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
        saved.save(tmp_path, {})
        read.read_weights(tmp_path)
        for name, weight in read.state_dict().items():
            assert torch.equal(weight, saved.state_dict()[name]), name
        setting: Any = SimpleNamespace(job=SimpleNamespace(recipe=Recipe()))
        found = JointTraining(setting).acceptance(read)(read, lesson)
        medusa = Medusa(read.heads)
        assert torch.equal(found, medusa.acceptance(read.heads, read.reread(lesson)))
        assert not torch.equal(found, medusa.acceptance(read.heads, lesson))


@pytest.mark.parametrize("tied", [False, True])
def test_the_heads_learn_from_the_target_and_not_it_from_them(
    tied: bool, checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an objective that reads its distribution, whose places are more than are computed at
    once: the heads' shared head learns as one that predicts, not as what is predicted."""
    monkeypatch.setattr(head_losses, "_CHUNK", 4)
    old, lesson = load_model(checkpoints[0], backend="plain"), random_lesson(checkpoints[0], 0.0)
    shape = {"num_heads": 2, "own_lm_heads": True}
    joint = JointModule(Facts.of(old), model=str(checkpoints[0]), **shape).eval()
    if tied:
        lm = joint.target.lm
        lm.get_output_embeddings().weight = lm.get_input_embeddings().weight
    joint.heads(joint.reread(lesson), Objective({"kl_div": 1.0})).backward()
    weight = joint.target.lm.get_output_embeddings().weight
    of_heads = [w.grad for w in joint.heads.parameters()]
    assert any(grad is not None and grad.abs().sum() > 0 for grad in of_heads)
    if not tied:
        assert weight.grad is None or not weight.grad.any()


def test_by_adapters(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """What is learned of each matrix has their rank; head and embedding stay what they were. The
    new target and its heads are an ordinary pair."""
    pytest.importorskip("peft")
    shape = {"num_heads": 2, "lora_rank": 2}
    recipe = read_recipe("medusa2", {**SMALL, "shape": shape, "lr": 1e-2, "steps": 6})
    out = tmp_path / "out"
    outcome = make(Job(METHOD, str(checkpoints[0]), PROMPTS, recipe, out, show=False))
    assert outcome.expected.acceptance_length > 0
    old, new = (load_file(path / "model.safetensors") for path in (checkpoints[0], out / "target"))
    assert old.keys() == new.keys()
    changed = [name for name in old if not torch.equal(old[name], new[name])]
    assert changed and all("_proj" in name for name in changed)
    ranks = {int(torch.linalg.matrix_rank(new[n] - old[n], rtol=1e-3)) for n in changed}
    assert ranks <= {1, 2}
    config = {"method": "medusa", "model": out / "heads"}
    params = SamplingParams(temperature=0, max_tokens=16)
    [output] = LLM(out / "target", speculative_config=config).generate("the sea", params)
    assert output.token_ids == LLM(out / "target").generate("the sea", params)[0].token_ids


def test_a_target_that_does_not_run_natively(tmp_path: Path) -> None:
    """Is refused before anything is written, which may take hours."""
    GPT2Config(n_embd=32, n_head=2, n_layer=2).save_pretrained(tmp_path / "gpt2")
    recipe = read_recipe("medusa2", {**SMALL, "shape": {"num_heads": 1}, "steps": 1})
    with pytest.raises(ForetokenError, match="can't be trained as a drafter"):
        make(Job(METHOD, str(tmp_path / "gpt2"), PROMPTS, recipe, tmp_path / "out", show=False))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["target", "heads"])
def test_a_model_is_not_trained_over(
    part: str, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """The target itself, or heads of a training before, which happen to be where the new ones would
    be written. Nothing is."""
    place = shutil.copytree(checkpoints[0], tmp_path / part)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    recipe = read_recipe("medusa2", {**SMALL, "shape": {"num_heads": 1}, "steps": 1})
    with pytest.raises(ForetokenError, match=rf"{part}.config\.json wasn't written by a training"):
        make(Job(METHOD, str(checkpoints[0]), PROMPTS, recipe, tmp_path, show=False))
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == [part]


def test_what_the_card_says_of_the_new_target(tmp_path: Path) -> None:
    """How far it is from the old one, a place; how both are loaded; what was served of it."""
    job = Job(METHOD, "mini", (), Recipe(), tmp_path / "both")
    model = SimpleNamespace(device=torch.device("cpu"))
    setting: Any = SimpleNamespace(job=job, model=model, records={"target": range(9)})
    served = AcceptanceStats(tokens=30, passes=15, accepted_at=[6])
    outcome = Outcome(Progress(step=7), Estimate(30.0, 20.0, [9.0]), served)
    training._write_card(setting, outcome, 5.0, 30.0, 40.0)
    card = (tmp_path / "both" / "README.md").read_text()
    assert card.startswith("# mini and Medusa's heads") and "Along 40 held-out tokens" in card
    assert "is 0.1250 nats" in card and "the same at 75.0 % of them" in card
    config = '{"method": "medusa", "model": "both/heads"}'
    assert f'    LLM("both/target", speculative_config={config})' in card
    assert "Text: 9 answers of `mini`. It was trained for 7 steps" in card
    assert "| estimated | 1.500 | 0.450 |" in card and "| served | 2.000 | 0.400 |" in card


def test_the_card_is_about_the_target_as_it_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the dropout of its training."""
    modes: list[bool] = []
    joint = torch.nn.Linear(1, 1).train()

    def distance(lesson: Any) -> torch.Tensor:
        modes.append(joint.training)
        return torch.ones(3)

    joint.distance = distance  # type: ignore[assignment]
    monkeypatch.setattr(training, "_joint", lambda module: module)
    monkeypatch.setattr(training, "lessons", lambda *given: [None, None])
    monkeypatch.setattr(training, "_write_card", lambda *given: None)
    subject: Any = SimpleNamespace(
        _setting=SimpleNamespace(held_out=None, job=SimpleNamespace(recipe=SimpleNamespace(rows=1)))
    )
    nothing: Any = None
    training.JointTraining.write_card(subject, joint, nothing, nothing)  # type: ignore[arg-type]
    assert modes == [False, False]


def test_target_and_heads_together(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """A new target, near the old one, whose texts its heads don't change; the card says both."""
    heads = read_recipe("medusa", {**SMALL, "shape": {"num_heads": 2}, "steps": 2})
    make(Job("medusa", str(checkpoints[0]), PROMPTS, heads, tmp_path / "heads", show=False))
    shape = {"heads": str(tmp_path / "heads")}
    recipe = read_recipe("medusa2", {**SMALL, "shape": shape, "lr": 1e-3, "steps": 12})
    losses: list[float] = []
    out = tmp_path / "out"
    outcome = make(
        Job(
            METHOD,
            str(checkpoints[0]),
            PROMPTS,
            recipe,
            out,
            show=False,
            report=lambda now: losses.append(now.loss),
        )
    )
    assert losses[-1] < losses[0]
    first = load_file(tmp_path / "heads" / "model.safetensors")
    again = load_file(out / "heads" / "model.safetensors")
    assert first.keys() == again.keys()
    assert not all(torch.equal(first[key], again[key]) for key in first)
    old, new = (load_file(path / "model.safetensors") for path in (checkpoints[0], out / "target"))
    assert not all(torch.equal(old[key], new[key]) for key in new)
    card = (out / "README.md").read_text()
    assert "is a new target" in card and f"{outcome.expected.acceptance_length:.3f}" in card
    config = {"method": "medusa", "model": out / "heads"}
    params = SamplingParams(temperature=0, max_tokens=16)
    [output] = LLM(out / "target", speculative_config=config).generate("the sea", params)
    assert output.token_ids == LLM(out / "target").generate("the sea", params)[0].token_ids
    with pytest.raises(ForetokenError, match="not from 'fixed'"):
        make(Job(METHOD, str(checkpoints[0]), PROMPTS, recipe, out, source="fixed"))

"""The learner: steps taken while decoding goes on, versions, and steps that fail."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.drafters.online import Online
from foretoken.drafters.shared.learner import ModuleWeights
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.specdec import SpecDec, SpecDecModel
from foretoken.errors import ForetokenError
from foretoken.models.load import load_model
from foretoken.models.target import ModelTarget
from foretoken.testing import Pair, logits_after, related
from foretoken.testing.checks import greedy_reference
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.small_lm import TrainedLM
from lessons import seeded
from online_serving import GREEDY, PROMPTS_OF_23, answered, served
from stored_models import written

THREADS = """
import threading
import torch
from foretoken.drafters.shared.learner import _Worker

torch.set_num_threads(2)
worker = _Worker(torch.device("cpu"))
print(worker(torch.get_num_threads).result(), torch.get_num_threads())
late = threading.Thread(target=lambda: print(torch.get_num_threads()))
late.start()
late.join()
"""


def test_one_core_is_for_learning_alone() -> None:
    """Threads that begin later, another model's for one, compute with as many as before."""
    shown = subprocess.run(
        [sys.executable, "-c", THREADS], check=True, capture_output=True, text=True
    ).stdout
    assert shown.split() == ["1", "2", "2"]


def test_decoding_never_waits(small: Pair, folder: Path) -> None:
    """While a step of learning hangs, requests are served by the old weights to their end; the new
    ones serve from the first draft after it is done."""
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])
    learner, go = drafter.learner, threading.Event()
    made: Callable[[], Any] = learner.weights.build
    learner.weights.build = lambda: (go.wait(60), made())[1]  # type: ignore[method-assign]
    before = drafter.parts[0].small_models[0]
    for prompt in PROMPTS_OF_23 * 2:
        request = engine.add(prompt, GREEDY)
        while engine.busy:
            engine.step()
        assert request.finished
    assert learner.version == 0 and drafter.parts[0].small_models[0] is before
    go.set()
    learner._job.exception()  # type: ignore[union-attr]
    # Not before a draft begins: one in the middle of its passes goes on with what it began with.
    assert learner.version == 0 and drafter.parts[0].small_models[0] is before
    engine.add([1, 2], GREEDY)
    engine.step()
    engine.step()
    assert learner.version == 1 and drafter.parts[0].small_models[0] is not before
    learner.settle()


def test_what_serves_a_copy_is_refused(small: Pair) -> None:
    """Its versions would never be drafted with."""
    module = seeded(SpecDecModel, small, masks=2)
    with pytest.raises(ForetokenError, match="'specdec' drafts with a packed copy"):
        Online([SpecDec(module)]).bind(ModelTarget(small.target, 1, 32))


@pytest.mark.parametrize("model_impl", ["native", "transformers"])
def test_heads_learn_from_capped_logits(tmp_path: Path, model_impl: str) -> None:
    """Those of the head that they are served with, and gradients pass."""
    folder = written(tmp_path, "gemma2", final_logit_softcapping=2.0)
    target = ModelTarget(load_model(folder, model_impl=model_impl, dtype=torch.float32), 1, 32)
    module = MedusaHeads(Facts.of(target), num_heads=1, own_lm_heads=False)
    head = ModuleWeights(module, target, torch.float32).head()
    states = 3 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = target.head(states)
    assert expected.abs().max() > 1.5
    found = head(states.requires_grad_())
    torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-4)
    found.sum().backward()
    assert states.grad is not None and states.grad.abs().sum() > 0


def test_versions(small: Pair, folder: Path, tmp_path: Path) -> None:
    """Rolled back, frozen, saved, loaded, forgotten; numbers are never used twice."""
    drafter = Online([SmallLM(str(folder), 3)], every=1, lr=1e-2, versions=2)
    engine, _ = served(drafter, small, PROMPTS_OF_23[:4])
    learner = drafter.learner
    assert learner.version == 4 and sorted(learner._versions) == [0, 3, 4]
    with pytest.raises(ForetokenError, match="version '1'"):
        learner.rollback(1)
    drafts = [logits_of(drafter, small, [5, 9, 2])]
    learner.rollback(3)
    assert learner.version == 3
    drafts.append(logits_of(drafter, small, [5, 9, 2]))
    learner.freeze()
    answered(engine, PROMPTS_OF_23[0])
    assert learner.version == 3
    learner.save(tmp_path / "learned")
    again = Online([SmallLM(str(tmp_path / "learned"), 3)])
    served(again, small, [])
    assert torch.equal(logits_of(again, small, [5, 9, 2]), drafts[1])
    learner.thaw()
    answered(engine, PROMPTS_OF_23[0])
    assert learner.version == 5
    learner.reset()
    assert learner.version == 0
    first = Online([SmallLM(str(folder), 3)])
    served(first, small, [])
    assert torch.equal(logits_of(drafter, small, [5, 9, 2]), logits_of(first, small, [5, 9, 2]))
    learner.load(tmp_path / "learned")
    assert learner.version == 6
    assert torch.equal(logits_of(drafter, small, [5, 9, 2]), drafts[1])
    assert not torch.equal(drafts[0], drafts[1])


def test_frozen_is_frozen(small: Pair, folder: Path) -> None:
    """A step that was due is not taken, then or after learning goes on."""
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])
    engine.add(PROMPTS_OF_23[0], GREEDY)
    while engine.busy:
        engine.step()
    learner = drafter.learner
    assert learner._due and len(learner._buffer)
    learner.freeze()
    for _ in range(2):
        learner.turn()
        learner.settle()
        assert learner.version == 0
        learner.thaw()


def logits_of(drafter: Online, pair: Pair, text: list[int]) -> Tensor:
    """Logits of the small model that serves, after a text."""
    return logits_after(drafter.parts[0].small_models[0], text)


def test_a_loss_that_is_no_number_changes_nothing(
    small: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its step is not taken: the version and the weights stay."""
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])
    monkeypatch.setattr(
        Objective, "__call__", lambda self, mine, target, goal: mine.sum(-1) * torch.nan
    )
    answered(engine, PROMPTS_OF_23[0])
    assert drafter.learner.version == 0 and drafter.learner.loss != drafter.learner.loss
    assert all(bool(w.isfinite().all()) for w in drafter.learner.weights.student.parameters())


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError("out of memory")])
def test_a_step_that_fails_ends_learning_and_not_serving(
    small: Pair, folder: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning, no more steps, and the text is still the target\'s."""
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    engine, _ = served(drafter, small, [])

    def fail() -> None:
        raise error

    drafter.learner.weights.build = fail  # type: ignore[method-assign]
    answered(engine, PROMPTS_OF_23[0])
    assert "stopped learning: out of memory" in caplog.text
    assert drafter.learner.frozen
    expected = greedy_reference(small.target, PROMPTS_OF_23[1], 24)
    assert answered(engine, PROMPTS_OF_23[1]).token_ids == expected


def test_memory_of_a_step_is_bounded(
    small: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step learns from a window's tokens at a time, however many mistakes there are, and the
    weights become those of a step that reads all of them at once."""
    sizes: list[list[int]] = []
    original = TrainedLM.forward

    def counted(self: TrainedLM, lesson: Lesson, objective: Objective) -> Tensor:
        sizes[-1].append(lesson.tokens.numel())
        return original(self, lesson, objective)

    monkeypatch.setattr(TrainedLM, "forward", counted)
    learned, prompts = [], PROMPTS_OF_23[:2] * 2
    for window in (40, 4000):
        sizes.append([])
        drafter = Online([SmallLM(str(folder), 3)], every=len(prompts), window=40, lr=1e-2)
        engine, _ = served(drafter, small, [])
        drafter.learner._window = window
        for prompt in prompts:
            answered(engine, prompt)
        assert drafter.learner.version == 1
        learned.append((drafter.learner.loss, logits_of(drafter, small, [5, 9, 2])))
    bounded, whole = sizes
    assert len(bounded) > 2 and max(bounded) <= 40 and len(whole) == 1 and whole[0] > 80
    assert learned[0][0] == pytest.approx(learned[1][0], rel=1e-6)
    torch.testing.assert_close(learned[0][1], learned[1][1], rtol=0, atol=1e-5)


def test_versions_are_bounded(small: Pair, folder: Path, tmp_path: Path) -> None:
    """Also where they come from files."""
    drafter = Online([SmallLM(str(folder), 3)], versions=2)
    served(drafter, small, [])
    drafter.learner.save(tmp_path / "first")
    for _ in range(5):
        drafter.learner.load(tmp_path / "first")
    assert sorted(drafter.learner._versions) == [0, 4, 5]


def test_memory_is_returned_after_a_step(
    small: Pair, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the step's logits took isn't kept by the allocator."""
    returned: list[str] = []
    monkeypatch.setattr(
        "foretoken.drafters.shared.learner.return_memory",
        lambda: returned.append(threading.current_thread().name),
    )
    drafter = Online([SmallLM(str(folder), 3)], every=1)
    served(drafter, small, PROMPTS_OF_23[:2])
    assert drafter.learner.version == 2 and len(returned) == 2
    assert all(name.startswith("foretoken-online") for name in returned)


def test_weights_of_another_shape_change_nothing(small: Pair, folder: Path, tmp_path: Path) -> None:
    """Though some of them would fit, and are read first."""
    drafter = Online([SmallLM(str(folder), 3)], every=1, lr=1e-2)
    served(drafter, small, PROMPTS_OF_23[:1])
    learner = drafter.learner
    learner.save(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = {name: torch.zeros_like(weight) for name, weight in load_file(file).items()}
    weights.pop(next(name for name in weights if "norm" in name))
    save_file(weights, file, {"format": "pt"})
    before = {k: v.clone() for k, v in learner.weights.student.state_dict().items()}
    with pytest.raises(ForetokenError):
        learner.load(tmp_path)
    after = learner.weights.student.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_after_a_reset_requests_are_counted_anew(small: Pair, folder: Path) -> None:
    """Those before it bring no step, and their mistakes are gone."""
    drafter = Online([SmallLM(str(folder), 3)], every=2)
    engine, _ = served(drafter, small, PROMPTS_OF_23[:1])
    learner = drafter.learner
    assert len(learner._buffer)
    learner.reset()
    assert not len(learner._buffer)
    versions = []
    for _ in range(2):
        answered(engine, PROMPTS_OF_23[0])
        versions.append(learner.version)
    assert versions == [0, 1]


def test_after_a_rollback_steps_are_those_of_the_version(small: Pair, folder: Path) -> None:
    """Whatever was learned since: as by a drafter that has learned nothing else."""
    learned = []
    for before in ([], PROMPTS_OF_23[:1]):
        drafter = Online([SmallLM(str(folder), 3)], every=1, lr=1e-2)
        engine, _ = served(drafter, small, before)
        assert drafter.learner.version == len(before)
        if before:
            drafter.learner.rollback(0)
        answered(engine, PROMPTS_OF_23[1])
        assert drafter.learner.version == len(before) + 1
        learned.append(logits_of(drafter, small, [5, 9, 2]))
    torch.testing.assert_close(*learned)


def test_drafts_that_are_always_right_teach_nothing(small: Pair, tmp_path: Path) -> None:
    """There is nothing to take a step on, which is no failure."""
    related(small.transformers, 0.0).float().save_pretrained(tmp_path)
    drafter = Online([SmallLM(str(tmp_path), 3)], every=1)
    _, [output] = served(drafter, small, PROMPTS_OF_23[:1])
    assert output.stats.accepted == output.stats.drafted > 0
    assert drafter.learner.version == 0 and not drafter.learner.frozen


def test_a_saved_module_says_its_version(small: Pair, tmp_path: Path) -> None:
    heads = MedusaHeads(Facts.of(small.target), num_heads=1, own_lm_heads=False).double()
    drafter = Online([Medusa(heads)])
    drafter.bind(ModelTarget(small.target, 1, 32))
    for version in (0, 1):
        drafter.learner.save(tmp_path)
        assert json.loads((tmp_path / "config.json").read_text())["online_version"] == version
        drafter.learner.load(tmp_path)

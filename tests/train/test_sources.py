"""Where texts come from, and mixtures of sources."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretoken import LLM, ForetokenError
from foretoken.spellings import Conversation
from foretoken.train import sources
from foretoken.train.data import digest_of
from foretoken.train.job import Job, Setting
from foretoken.train.recipe import read_recipe
from foretoken.train.records import Records
from foretoken.train.run import make
from foretoken.train.sources import answered, hold_out, source_names, step_records, texts
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.small_lm import TrainedLM
from stored_models import change_config
from trainings import PROMPTS, SMALL, WORDS, small_lm_job, train_small_lm


def test_texts_at_another_temperature(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """They are drawn from as often as those at the recipe's, which alone are held out."""
    target = checkpoints[0]
    job = small_lm_job(target, tmp_path, "target+target@1.5", PROMPTS * 2)
    llm = LLM(str(target))
    found = texts(llm, job)
    assert list(found) == ["target", "target@1.5"]
    greedy = texts(llm, dataclasses.replace(job, source="target"))["target"]
    assert digest_of(found["target"]) == digest_of(greedy) != digest_of(found["target@1.5"])
    warm = small_lm_job(target, tmp_path / "warm", prompts=PROMPTS * 2, temperature=1.5)
    alone = texts(llm, warm)["target"]
    assert digest_of(found["target@1.5"]) == digest_of(alone)
    nothing: Any = None
    setting = Setting(job, llm, nothing, nothing, found, found["target"], "")
    parts = step_records(setting, nothing)(0)
    assert [digest_of(part) for part in parts] == [digest_of(part) for part in found.values()]
    with pytest.raises(ForetokenError, match="target@TEMPERATURE"):
        source_names("target@warm")


def test_held_out_texts_where_all_answers_loop(
    checkpoints: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Better the file's texts than none, and the log says so."""
    llm, target = LLM(str(checkpoints[0])), checkpoints[0]
    held = Records.of([([5, 6], [7, 8]), ([9], [10])], 4, 97)
    assert answered(llm, held, small_lm_job(target, tmp_path, distinct=2.0)) is held
    assert "on the file's own texts: of 2 held-out prompts 2 have at most" in caplog.text
    caplog.clear()
    some = answered(llm, held, small_lm_job(target, tmp_path, distinct=0.0))
    assert not caplog.text
    assert [some.prompt(i) for i in range(len(some))] == [[5, 6], [9]]


def test_held_out_prompts_that_have_no_answer(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Are counted in the log."""
    llm = LLM(str(checkpoints[0]))
    outputs = [SimpleNamespace(token_ids=[7, 8], error=error) for error in (None, "It is no text.")]
    monkeypatch.setattr(llm, "generate", lambda *given: outputs)
    held = Records.of([([5, 6], [7, 8]), ([9], [10])], 4, 97)
    found = answered(llm, held, small_lm_job(checkpoints[0], tmp_path, distinct=0.0))
    assert len(found) == 1 and "1 prompts are left out, the first as: It is no" in caplog.text


def test_a_drafters_texts_are_mixed_in_once(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same list for all steps of the same texts, so that these are joined once."""
    own = [Records.of([([5], [6, 7])], 4, 97) for _ in range(2)]
    monkeypatch.setattr(sources, "DrafterTexts", lambda *given: lambda step: own[step // 3])
    job = small_lm_job(checkpoints[0], tmp_path, source="target+drafter")
    known = Records.of([([1], [2, 3])], 4, 97)
    setting: Any = SimpleNamespace(job=job, records={"target": known}, llm=None)
    module = TrainedLM(Facts(0, 97, 0), model=str(checkpoints[1]))
    records = step_records(setting, module)
    found = [records(step) for step in range(6)]
    assert all(one is found[0] for one in found[:3]) and all(one is found[3] for one in found[3:])
    assert [*found[0]] == [known, own[0]] and [*found[3]] == [known, own[1]]


def test_answers_that_loop_are_left_out(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Here all, as more is asked for than there can be."""
    job = small_lm_job(checkpoints[0], tmp_path, distinct=2.0)
    with pytest.raises(ForetokenError, match=r"There are 0 texts to learn from \(target\)"):
        texts(LLM(str(checkpoints[0])), job)


def test_held_out_texts_without_prompts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """The target goes on from the first half of each, as much as there is room for; a prompt that
    leaves none is left out."""
    llm, target = LLM(str(checkpoints[0])), checkpoints[0]
    texts = [([], [5, 6, 7, 8]), ([], [9]), ([], [*range(90)]), ([3], [4]), ([3] * 33, [4])]
    held = Records.of(texts, 4, 97)
    found = answered(llm, held, small_lm_job(target, tmp_path, length=40, max_tokens=8))
    prompts = [found.prompt(i) for i in range(len(found))]
    assert prompts == [[5, 6], [*range(32)], [3]]
    turns = [{"role": "assistant", "content": word} for word in WORDS]
    alone = [Conversation((), whole=(turn,), raw=True) for turn in turns]
    out, recipe = tmp_path / "out", read_recipe("sps", SMALL)
    make(Job("sps", str(target), alone, recipe, out, source="fixed", show=False))
    assert (out / "model.safetensors").is_file()


def test_tokens_that_the_model_does_not_have(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As of a tokenizer to which some were added: a file's texts with them are left out."""
    pairs = [([1, 2], [96]), ([97], [3]), ([4], [5, 98]), ([], [6])]
    monkeypatch.setattr(sources, "fixed", lambda *given: Records.of(pairs, 9, 97))
    with caplog.at_level(logging.WARNING):
        found = texts(LLM(str(checkpoints[0])), small_lm_job(checkpoints[0], tmp_path, "fixed"))
    assert [found["fixed"].answer(i) for i in range(len(found["fixed"]))] == [[96], [6]]
    assert "2 texts are left out: they have the token 98, and the model has 97" in caplog.text


def test_prompts_that_come_twice(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """None that is held out is learned from, whichever source has it, and how often."""
    llm, job = LLM(str(checkpoints[0])), small_lm_job(checkpoints[0], tmp_path)
    records = Records.of([([i % 3, 9], [i, i + 1]) for i in range(8)], 4, 97)
    learned, held = hold_out(llm, job, {"target": records, "target@1": records})
    assert [held.prompt(i) for i in range(len(held))] == [[0, 9], [1, 9]]
    for part in learned.values():
        assert [part.prompt(i) for i in range(len(part))] == [[2, 9], [2, 9]]
    same = Records.of([([1], [i]) for i in range(6)], 4, 97)
    with pytest.raises(ForetokenError, match=r"All texts .* \(target\) have prompts that are held"):
        hold_out(llm, job, {"target": same})


def test_a_context_shorter_than_the_recipes_texts(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """Prompts that leave no room for a whole answer in it are left out, as those that don't in a
    row of the recipe."""
    target = Path(shutil.copytree(checkpoints[0], tmp_path / "target"))
    change_config(target, max_position_embeddings=40)
    prompts = [Conversation(({"role": "user", "content": "x" * n},), raw=True) for n in (50, 17)]
    job = small_lm_job(target, tmp_path / "out", prompts=[*prompts, *PROMPTS], length=96)
    found = texts(LLM(str(target)), job)["target"]
    assert [len(found.answer(i)) for i in range(len(found))] == [24] * len(PROMPTS)
    said = {"role": "assistant", "content": "y" * 90}
    spoken = [dataclasses.replace(each, whole=(*each.messages, said)) for each in PROMPTS]
    own = texts(LLM(str(target)), dataclasses.replace(job, conversations=spoken, source="fixed"))
    assert set(np.diff(own["fixed"].starts)) == {40}
    change_config(target, max_position_embeddings=24)
    with pytest.raises(ForetokenError, match="max_tokens is 24 and the target's context 24"):
        texts(LLM(str(target)), job)


def test_sources_that_cannot_be() -> None:
    """An unknown name gets a suggestion."""
    with pytest.raises(ForetokenError, match="Did you mean 'drafter'"):
        source_names("target+drafters")


def test_drafters_that_cannot_learn_from_themselves(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """Without the target's distribution there is nothing to learn; heads write no texts."""
    pytest.importorskip("accelerate")
    with pytest.raises(ForetokenError, match="learns nothing from its own tokens"):
        train_small_lm(checkpoints[0], tmp_path / "a", "drafter", objective={"nll": 1.0})
    recipe = read_recipe("medusa", {**SMALL, "shape": {"num_heads": 1}})
    with pytest.raises(ForetokenError, match="can't write texts by itself"):
        make(Job("medusa", str(checkpoints[0]), PROMPTS, recipe, tmp_path / "b", source="drafter"))


def test_sources_that_are_named_twice(tmp_path: Path) -> None:
    """Count once; what estimates are made on comes first, and 0 is a temperature."""
    assert source_names("target+fixed+target") == ["target", "fixed"]
    assert sources._read(small_lm_job(tmp_path, tmp_path, "fixed+target@0")) == [
        "target",
        "fixed",
        "target@0",
    ]
    warm = small_lm_job(tmp_path, tmp_path, temperature=1.5)
    assert sources.sampling(warm).temperature == 1.5
    assert sources.sampling(warm, 0.0).temperature == 0

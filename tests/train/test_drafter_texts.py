"""What a drafter in training writes itself."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.train import drafter_texts, processes
from foretoken.train.drafter_texts import DrafterTexts
from foretoken.train.job import Job
from foretoken.train.recipe import read_recipe
from foretoken.train.records import Records
from foretoken.train.run import make
from trainings import PROMPTS, SMALL, train_small_lm

pytest.importorskip("accelerate")


def test_resumed_with_its_own_texts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Stopped and resumed, by what it writes itself: the very weights of one run."""
    settings = {"own_every": 4, "own_texts": 3, "shape": {"model": str(checkpoints[1])}}
    train_small_lm(checkpoints[0], tmp_path / "one", "target+drafter", **settings)
    written = sorted(path.name for path in (tmp_path / "one" / "own").iterdir())
    assert written == ["own-00000.npz", "own-00001.npz", "own-00002.npz"]

    class Stopped(Exception):
        pass

    def stop(now: Any) -> None:
        if now.step == 7:
            raise Stopped

    recipe = read_recipe("sps", {**SMALL, **settings})
    for report in (stop, lambda now: None):
        try:
            make(
                Job(
                    "sps",
                    str(checkpoints[0]),
                    PROMPTS,
                    recipe,
                    tmp_path / "two",
                    every=0.0,
                    show=False,
                    source="target+drafter",
                    report=report,
                )
            )
        except Stopped:
            assert (tmp_path / "two" / "resume").exists()
    nothing: Any = None
    prompts = Records.of([([1], [2])], 4, 97)
    texts = DrafterTexts(nothing, nothing, prompts, tmp_path / "none", SamplingParams(), 3, 4, 0.0)
    with pytest.raises(ForetokenError, match=r"own-00001.npz is missing"):
        texts(6)
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def test_texts_that_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out, unless all do, which is said."""
    nothing: Any = None
    looping, other = ([1], [2] * 12), ([1], list(range(12)))
    for written, kept in (([looping, other], [other]), ([looping], [looping])):
        records = Records.of(written, 16, 97)
        monkeypatch.setattr(DrafterTexts, "_read_or_write", lambda *a, records=records: records)
        texts = DrafterTexts(nothing, nothing, records, tmp_path, SamplingParams(), 2, 4, 0.5)
        with caplog.at_level(logging.WARNING):
            found = texts(0)
        assert [(found.prompt(i), found.answer(i)) for i in range(len(found))] == kept
    assert caplog.text.count("All 1 texts that the drafter wrote by itself loop") == 1


def test_prompts_that_it_cannot_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose context is shorter than the target's: they are no texts without an answer."""
    answered = [([], "It is too long."), ([3], None)]

    def generate(prompts: Any, params: Any) -> Any:
        return [SimpleNamespace(token_ids=ids, error=error) for ids, error in answered]

    writer = SimpleNamespace(generate=generate)
    monkeypatch.setattr(drafter_texts, "beside", lambda *given: nullcontext(writer))
    module: Any = SimpleNamespace(native=lambda: None, facts=SimpleNamespace(vocab_size=97))
    nothing: Any = None
    prompts = Records.of([([1], [2]), ([5], [6])], 4, 97)
    given = nothing, prompts, tmp_path, SamplingParams(seed=0), 2, 4, 0.0
    with caplog.at_level(logging.WARNING):
        found = DrafterTexts(module, *given)(0)
    assert len(found) == 1 and found.answer(0) == [3]
    assert "1 of 2 prompts, which the drafter can't answer, are left out" in caplog.text
    answered[1] = answered[0]
    with pytest.raises(ForetokenError, match=r"can't answer a prompt.*It is too long"):
        DrafterTexts(module, *given)(4)


def test_each_block_is_drawn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By seeds that no other text has; each prompt once, where more texts are asked for."""
    seeds: list[int] = []

    def generate(prompts: Any, params: Any) -> Any:
        assert sorted(prompts) == [[1], [5]]
        seeds.extend(each.seed for each in params)
        return [SimpleNamespace(token_ids=[3], error=None) for _ in prompts]

    writer = SimpleNamespace(generate=generate)
    monkeypatch.setattr(drafter_texts, "beside", lambda *given: nullcontext(writer))
    module: Any = SimpleNamespace(native=lambda: None, facts=SimpleNamespace(vocab_size=97))
    nothing: Any = None
    prompts = Records.of([([1], [2]), ([5], [6])], 4, 97)
    texts = DrafterTexts(module, nothing, prompts, tmp_path, SamplingParams(seed=0), 3, 4, 0.0)
    for step in (0, 3, 4):
        texts(step)
    assert len(seeds) == 4 == len(set(seeds))


def test_a_drafter_samples_its_texts(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Whatever the temperature of the target's answers; without epochs, which it has not."""
    settings = {"own_texts": 3, "shape": {"model": str(checkpoints[1])}, "distinct": 0.0}
    texts = []
    for name, more in (("one", {}), ("two", {"own_temperature": 0.0})):
        train_small_lm(checkpoints[0], tmp_path / name, "target+drafter", **settings, **more)
        texts.append(np.load(tmp_path / name / "own" / "own-00000.npz")["tokens"].tolist())
    assert texts[0] != texts[1]
    with pytest.raises(ForetokenError, match="have no epochs"):
        train_small_lm(
            checkpoints[0], tmp_path / "three", "target+drafter", order="epochs", **settings
        )


def test_its_engine_is_made_for_its_texts(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of the target: a GPU has caches whole, which for the drafter's context would take
    what the training needs."""
    lengths: list[int] = []
    generate = LLM.generate

    def noting(llm: Any, *given: Any, **options: Any) -> Any:
        lengths.append(llm.engine.target.max_length)
        return generate(llm, *given, **options)

    monkeypatch.setattr(LLM, "generate", noting)
    settings = {"own_texts": 3, "shape": {"model": str(checkpoints[1])}}
    train_small_lm(checkpoints[0], tmp_path, "target+drafter", **settings)
    assert lengths and max(lengths) <= SMALL["length"]


class Writer:
    """Answers every prompt with its tokens, each one more, in place of a drafter's engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts, self.lengths = list[Any](), list[int]()
        monkeypatch.setattr(drafter_texts, "beside", self._beside)

    def _beside(self, llm: Any, model: Any, length: int, most: int) -> Any:
        self.lengths.append(length)
        return nullcontext(self)

    def generate(self, prompts: Any, params: Any) -> Any:
        self.prompts += prompts
        answers = [[token + 1 for token in prompt] for prompt in prompts]
        return [SimpleNamespace(token_ids=answer, error=None) for answer in answers]


def texts_of(folder: Path, pairs: Any, params: SamplingParams, count: int = 2) -> DrafterTexts:
    """Those of a stand-in, of which new ones are written every 4 steps."""
    module: Any = SimpleNamespace(native=lambda: None, facts=SimpleNamespace(vocab_size=97))
    nothing: Any = None
    prompts = Records.of(pairs, 7, 97)
    return DrafterTexts(module, nothing, prompts, folder, params, count, 4, 0.0)


PAIRS = [([1], [2]), ([5, 6, 7], [8])]


def test_other_processes_read_what_the_first_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for it, but not where the weights that would write it are gone."""
    writer, path, waited = Writer(monkeypatch), tmp_path / "own-00000.npz", list[Path]()
    first = texts_of(tmp_path, PAIRS, SamplingParams(seed=0))(0)
    written = path.read_bytes()
    path.unlink()

    def wait_for(file: Path) -> None:
        waited.append(file)
        file.write_bytes(written)

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(processes, "wait_for", wait_for)
    second = texts_of(tmp_path, PAIRS, SamplingParams(seed=0))
    found = second(0)
    assert waited == [path] and len(writer.prompts) == 2
    assert found.limit == first.limit == 7
    assert all((found.arrays[name] == first.arrays[name]).all() for name in Records.ARRAYS)
    with pytest.raises(ForetokenError, match=r"own-00001.npz is missing"):
        second(6)


def test_texts_of_another_recipe_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another seed, or of another number."""
    Writer(monkeypatch)
    texts_of(tmp_path, PAIRS, SamplingParams(seed=0))(0)
    for seed, count, said in ((1, 2, "made for seed 0"), (0, 1, "made for texts 2")):
        with pytest.raises(ForetokenError, match=said):
            texts_of(tmp_path, PAIRS, SamplingParams(seed=seed), count)(0)


def test_what_is_asked_of_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers to prompts alone, with room for the longest of them and all of its answer."""
    writer = Writer(monkeypatch)
    pairs = [([], [1, 2, 3, 4, 5]), *PAIRS]
    found = texts_of(tmp_path, pairs, SamplingParams(seed=0, max_tokens=9), count=3)(0)
    assert sorted(writer.prompts) == [[1], [5, 6, 7]] and writer.lengths == [3 + 9]
    assert sorted(found.answer(i) for i in range(len(found))) == [[2], [6, 7, 8]]

"""What a drafter in training writes itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.train.drafter_texts import DrafterTexts
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

"""Smaller models of a target's tokenizer, among what lies on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from command_line import Pair
from foretoken import LLM
from foretoken.recommender import models_nearby
from foretoken.recommender.models_nearby import (
    Place,
    folders,
    nearby,
    numbers_in,
    same_tokenizer,
    smaller_models,
)
from foretoken.testing import tiny_transformers

VOCABULARY = 97  # of the tiny target's tokenizer


@pytest.fixture
def beside(checkpoints: Pair, tmp_path: Path) -> Path:
    """The tiny target's folder, with others beside it."""
    shutil.copytree(checkpoints[0], tmp_path / "target")
    (tmp_path / "no-model").mkdir()
    (tmp_path / "no-model" / "config.json").write_text("{}")
    (tmp_path / "broken.gguf").write_bytes(b"none")
    small = tiny_transformers(VOCABULARY, layers=1, dtype=torch.float32)
    small.save_pretrained(tmp_path / "small")
    small.save_pretrained(tmp_path / "other")
    for file in checkpoints[0].glob("token*"):
        shutil.copy(file, tmp_path / "small")
        shutil.copy(file, tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    given = json.loads(file.read_text())
    words = given["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.write_text(json.dumps(given))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_smaller_ones_of_its_tokenizer(
    beside: Path, checkpoints: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their headers and vocabularies; nothing else in the folder disturbs."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(beside / "hub"))
    target, plain = beside / "target", LLM(beside / "target")
    places = nearby(target)
    assert {"small", "other", "no-model", "broken.gguf"} <= {place.path.name for place in places}
    assert target not in folders(places)
    share = numbers_in(beside / "small") / numbers_in(target)
    monkeypatch.setattr(models_nearby, "SMALLER", share - 0.01)
    assert not smaller_models(plain, target, places), "it is too large"
    monkeypatch.setattr(models_nearby, "SMALLER", share + 0.01)
    small = Place(str(beside / "small"), beside / "small")
    assert share < 1 and smaller_models(plain, target, places) == [small]
    assert same_tokenizer(plain.tokenizer, beside / "small")
    assert not same_tokenizer(plain.tokenizer, beside / "other")
    assert not same_tokenizer(plain.tokenizer, beside / "no-model")
    assert not smaller_models(LLM(plain.model), target, places), "it has no tokenizer"


@pytest.mark.usefixtures("cache")
def test_names_by_which_they_are_found_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bundled names, ids of the hub, and paths."""
    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    for folder in (
        hub / "models--org--name" / "snapshots" / "1234",
        cache / "models" / "own",
        tmp_path / "alone" / "target",
    ):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    names = {place.name for place in nearby(tmp_path / "alone" / "target")}
    assert names >= {"mini-draft", "org/name", str(cache / "models" / "own")}
    assert len([name for name in names if "alone" in name]) == 0


def test_a_few_tokens_in_common_make_no_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than half of the target's must be there, each under the same id."""
    ours = {text: number for number, text in enumerate("abcdef")}

    def same(theirs: dict[str, int]) -> bool:
        other = SimpleNamespace(get_vocab=lambda: theirs)
        monkeypatch.setattr(models_nearby, "load_tokenizer", lambda path: other)
        return same_tokenizer(SimpleNamespace(get_vocab=lambda: ours), Path())

    assert same({**ours, "x": 9}) and same({text: ours[text] for text in "abcd"})
    assert not same({text: ours[text] for text in "abc"}) and not same({**ours, "a": 9})

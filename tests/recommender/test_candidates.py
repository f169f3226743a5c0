"""Which methods apply to a target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from command_line import Pair
from foretoken import LLM, ForetokenError, zoo
from foretoken.recommender.candidates import (
    LONGEST,
    Candidate,
    _distinct,
    _of_the_target,
    find_candidates,
    with_auto,
)

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def mini() -> LLM:
    return LLM("mini")


def test_what_applies_to_the_bundled_target(mini: LLM) -> None:
    """Copies, its small model, every drafter that was trained for it, and the target itself; large
    trees where wide passes are cheap."""
    found = find_candidates(mini, zoo.path("mini"), (), wide=False)
    labels = [one.label for one in found.candidates]
    assert {"pld", "suffix", "sam", "sps mini-draft", "early_exit", "swift", "substitute"} <= {
        *labels
    }
    assert {"eagle2 mini-eagle", "eagle3 mini-eagle3", "dflash_tree mini-dflash"} <= {*labels}
    assert "token_recycling" not in labels and len({*labels}) == len(labels)
    small = next(one for one in found.candidates if one.label == "sps mini-draft")
    assert small.any_length and not small.given
    assert small.config == {"method": "sps", "model": "mini-draft", "num_speculative_tokens": 8}
    narrow = next(one for one in found.candidates if one.label == "sps mini-draft in q4")
    assert narrow.config == {**small.config, "draft_backend": "q4"} and narrow.any_length
    wide = find_candidates(mini, zoo.path("mini"), (), wide=True)
    assert "token_recycling" in [one.label for one in wide.candidates]


def test_given_models(mini: LLM, checkpoints: Pair) -> None:
    """By what they are: a drafter trained for the target, a model of its tokenizer, one of another;
    each once, although it is also found."""
    given = ("mini-eagle", "mini-draft", str(checkpoints[1]))
    found = find_candidates(mini, zoo.path("mini"), given, wide=False)
    asked = [one.label for one in found.candidates if one.given]
    assert asked == ["eagle mini-eagle", "eagle2 mini-eagle", "sps mini-draft", "tli draft"]
    assert "tli draft in q4" in [one.label for one in found.candidates]
    assert [one.label for one in found.candidates].count("sps mini-draft") == 1
    by_path = find_candidates(mini, zoo.path("mini"), (str(zoo.path("mini-draft")),), wide=False)
    small = [one.label for one in by_path.candidates if one.config["method"] == "sps"]
    assert {*small} == {"sps mini-draft", "sps mini-draft in q4"} and len(small) == 2
    with pytest.raises(ForetokenError, match="nowhere"):
        find_candidates(mini, zoo.path("mini"), ("./nowhere",), wide=False)


def test_without_the_target_s_layers(checkpoints: Pair) -> None:
    """A model that transformers runs drafts with nothing of its own."""
    outside = LLM(checkpoints[0], model_impl="transformers")
    found = find_candidates(outside, checkpoints[0], (), wide=False)
    methods = {one.config["method"] for one in found.candidates}
    assert not [one.label for one in found.candidates if "q4" in one.label]
    assert not methods & {"early_exit", "swift", "substitute"}


def test_lengths_and_names() -> None:
    """A length is part of the name; two models of one name are told apart by their folders."""
    one = Candidate("sps a", {"method": "sps", "model": "x/a"}, any_length=True)
    assert one.of_length(1).label == "sps a, 1 token"
    assert one.of_length(LONGEST).config["num_speculative_tokens"] == LONGEST
    other = Candidate("sps a", {"method": "sps", "model": "y/a"})
    assert [c.label for c in _distinct([one, other, one])] == ["sps a", "sps y/a"]
    assert with_auto(None).config == {"method": "auto"}
    auto = with_auto(one)
    assert (auto.label, auto.config) == ("auto a", {"method": "auto", "model": "x/a"})
    narrow = Candidate("sps a in q4", {"method": "sps", "model": "x/a", "draft_backend": "q4"})
    auto = with_auto(narrow)
    assert auto.label == "auto a in q4" and auto.config["draft_backend"] == "q4"
    named = Candidate("sps b", {"method": "sps", "model": str(Path("x") / "b.gguf")})
    assert with_auto(named).label == "auto b"


def test_a_copy_in_4_bits_must_read_less() -> None:
    """Of a target that reads about as little there is none."""

    def labels(bytes_read: int) -> list[str]:
        model = SimpleNamespace(
            levels=frozenset("abef"), parameters=100, bytes_read=bytes_read, source="here"
        )
        return [one.label for one in _of_the_target(cast(LLM, SimpleNamespace(model=model)), False)]

    assert labels(100) == [*labels(60), "substitute"] and "early_exit" in labels(60)

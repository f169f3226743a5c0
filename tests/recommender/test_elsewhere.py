"""What is written for vLLM is read here, as the same method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretoken.config import build
from foretoken.models.load import fetched, find
from foretoken.recommender import elsewhere
from foretoken.recommender.elsewhere import for_vllm, their_name
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.eagle import EagleModule


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            {"method": "pld", "num_speculative_tokens": 4},
            {
                "method": "ngram",
                "num_speculative_tokens": 4,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            },
        ),
        (
            {"method": "pld", "prompt_lookup_num_tokens": 5, "max_matching_ngram_size": 2},
            {
                "method": "ngram",
                "num_speculative_tokens": 5,
                "prompt_lookup_max": 2,
                "prompt_lookup_min": 1,
            },
        ),
        (
            {"method": "sps", "assistant_model": "org/small", "num_assistant_tokens": 3},
            {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 3},
        ),
        (
            {"method": "suffix", "min_token_prob": 0.2},
            {
                "method": "suffix",
                "suffix_decoding_max_tree_depth": 64,
                "suffix_decoding_max_spec_factor": 1.0,
                "suffix_decoding_min_token_prob": 0.2,
            },
        ),
        (
            {"method": "sps", "model": "org/small", "num_speculative_tokens": 3},
            {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 3},
        ),
    ],
)
def test_read_by_us_it_is_the_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Their names are ours too, so both configs build one drafter."""
    assert for_vllm(ours, 2.0) == theirs
    one, other = build(ours), build(theirs)
    assert vars(one.drafter).keys() == vars(other.drafter).keys()
    simple = (int, float, str)
    assert {k: v for k, v in vars(one.drafter).items() if isinstance(v, simple)} == {
        k: v for k, v in vars(other.drafter).items() if isinstance(v, simple)
    }


def test_what_they_do_not_have(tmp_path: Path) -> None:
    """Methods of other names, draft models in GGUF files, drafters in our own format, and drafts
    of a length that nobody names."""
    EagleModule(Facts(32, 64, 2)).save(tmp_path / "eagle", {})
    for config in (
        {"method": "auto"},
        {"tuned": "mine"},
        {"method": "sps", "model": "org/small"},
        {"method": "sps", "model": "small.gguf", "num_speculative_tokens": 3},
        {"method": "eagle", "model": str(tmp_path / "eagle")},
        {"method": "eagle3", "model": "./nowhere"},
    ):
        assert for_vllm(config, 2.0) is None


@pytest.mark.usefixtures("cache")
def test_names_of_ours_are_told_by_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs know paths and hub ids only; a model that was fetched is a GGUF file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini-draft").mkdir()
    assert their_name("mini") == str(find("mini")) and their_name("mini-draft") == "mini-draft"
    assert their_name("org/name") == "org/name" and their_name("nowhere") == "nowhere"
    config = {"method": "sps", "model": "mini", "num_speculative_tokens": 3}
    assert for_vllm(config, 2.0) == config | {"method": "draft_model", "model": str(find("mini"))}
    (kept := fetched("small")).parent.mkdir(parents=True)
    kept.touch()
    assert for_vllm({**config, "model": "small"}, 2.0) is None


def test_a_trees_tokens_are_a_chains_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were accepted of it, rounded up, and at least one."""
    monkeypatch.setattr(elsewhere, "_is_published", lambda model: True)
    config = {"method": "eagle3", "model": "org/drafter"}
    for tokens, length in ((1.0, 1), (2.0, 1), (2.1, 2), (4.9, 4)):
        assert for_vllm(config, tokens) == {**config, "num_speculative_tokens": length}

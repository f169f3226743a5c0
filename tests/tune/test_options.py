"""The search for a method's fastest options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.testing import Pair
from foretoken.testing.checks import PROMPTS
from foretoken.tune.options import Tuner, tune

SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CONFIG = {"method": "pld", "prompt_lookup_max": 2}


def test_the_fastest_that_was_timed(pair: Pair) -> None:
    """Given options stay; the defaults are timed too; the answer is the first of all by speed."""
    pytest.importorskip("optuna")
    steps: list[int] = []
    tuner = Tuner(LLM(pair.target), CONFIG, PROMPTS[:2], SHORT)
    assert set(tuner.space) == {"num_speculative_tokens", "prompt_lookup_min"}
    found = tune(
        tuner, CONFIG, trials=4, finalists=2, rounds=2, seed=0, advance=lambda: steps.append(1)
    )
    speeds = {json.dumps(t["options"]): t["tokens_per_second"] for t in found["timed"]}
    assert max(speeds, key=speeds.__getitem__) == json.dumps(found["speculative_config"])
    assert json.dumps(CONFIG) in speeds and len(steps) == 4 + 2 + 1
    assert all(json.loads(options)["prompt_lookup_max"] == 2 for options in speeds)


def test_given_options_stay_by_any_name(pair: Pair) -> None:
    """transformers' names for what is searched: none is searched over."""
    config = {"method": "pld", "num_assistant_tokens": 3, "max_matching_ngram_size": 2}
    tuner = Tuner(LLM(pair.target), config, PROMPTS[:1], SHORT)
    assert set(tuner.space) == {"prompt_lookup_min"}


def test_nothing_to_tune(pair: Pair) -> None:
    """A method without options to search is refused."""
    with pytest.raises(ForetokenError, match="no option that can be tuned"):
        Tuner(LLM(pair.target), {"method": "autoregressive"}, PROMPTS[:1], SHORT)


def test_draft_models_are_loaded_once_where_a_config_names_them(
    deep: Pair, checkpoints: tuple[Path, Path]
) -> None:
    """One that is loaded comes without the options by which it was; a copy of the target is made
    for each candidate, as no option takes one that is there."""
    folder, draft = map(str, checkpoints)
    own, named = LLM(deep.target), LLM(folder)
    tried: list[tuple[LLM, dict[str, Any]]] = [
        (own, {"method": "pruned", "checkpoint": deep.transformers}),
        (own, {"method": "substitute", "checkpoint": deep.transformers, "draft_backend": "q8"}),
        (named, {"method": "sps", "model": draft, "draft_backend": "plain"}),
        (named, {"method": "sps", "draft_model": draft, "draft_vocab_size": 40}),
    ]
    for llm, config in tried:
        found = Tuner(llm, config, PROMPTS[:1], SHORT).predicted(config)
        assert found.config == config and found.tokens_per_second > 0

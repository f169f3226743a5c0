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
THRESHOLD = "assistant_confidence_threshold"


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


def test_a_given_schedule_has_no_threshold_to_search(pair: Pair) -> None:
    """Unless it has one: then every candidate is tried, and none is refused."""
    pytest.importorskip("optuna")
    name = "num_assistant_tokens_schedule"
    for schedule, searched in (("constant", []), ("confidence", [THRESHOLD])):
        config = {"method": "sps", "model": pair.draft, name: schedule}
        tuner = Tuner(LLM(pair.target), config, PROMPTS[:1], SHORT)
        assert set(tuner.space) == {"num_speculative_tokens", *searched}
        assert len(tuner.search(6, 0, lambda: None)) == 6
    with pytest.raises(ForetokenError, match="no option that can be tuned"):
        config = {"method": "sps", "model": pair.draft, name: "constant", "num_assistant_tokens": 3}
        Tuner(LLM(pair.target), config, PROMPTS[:1], SHORT)


def test_a_prompt_that_cannot_be_answered(pair: Pair) -> None:
    """It is named, and not left out of what decides."""
    llm = LLM(pair.target, max_model_len=40)
    with pytest.raises(ForetokenError, match="context"):
        Tuner(llm, CONFIG, [PROMPTS[0], [1] * 41], SHORT)


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


def interrupted(_: object) -> Any:
    raise KeyboardInterrupt


def test_an_interrupted_search_keeps_the_best(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """By prediction, as nothing was timed; before the first one there is nothing to keep."""
    pytest.importorskip("optuna")
    tuner = Tuner(LLM(pair.target), CONFIG, PROMPTS[:1], SHORT)
    predicted, left = tuner.predicted, iter(range(3))
    monkeypatch.setattr(
        tuner,
        "predicted",
        lambda config: interrupted(config) if next(left, None) is None else predicted(config),
    )
    options: Any = {"trials": 9, "finalists": 3, "rounds": 1, "seed": 0, "advance": lambda: None}
    found = tune(tuner, CONFIG, **options)
    assert (found["finished"], found["trials"], found["timed"]) == (False, 3, [])
    assert found["speculative_config"] == found["predicted"][0]["config"]
    assert json.loads(json.dumps(found, allow_nan=False))["tokens_per_second"] is None
    with pytest.raises(KeyboardInterrupt):
        tune(tuner, CONFIG, **options)


@pytest.mark.parametrize(("whole", "timed"), [(0, 0), (1, 0), (3, 2)])
def test_an_interrupted_timing_keeps_whole_rounds(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, whole: int, timed: int
) -> None:
    """The first of which warms up; where there is no other, the prediction counts."""
    pytest.importorskip("optuna")
    tuner = Tuner(LLM(pair.target), CONFIG, PROMPTS[:1], SHORT)

    def speeds(llms: list[LLM], turn: int) -> list[float]:
        if turn == whole:
            interrupted(turn)
        return [10.0 * turn + place for place in range(len(llms))]

    monkeypatch.setattr(tuner, "_round", speeds)
    found = tune(tuner, CONFIG, trials=3, finalists=2, rounds=9, seed=0, advance=lambda: None)
    assert found["finished"] is False and bool(found["timed"]) is bool(timed)
    if timed:  # the median of 10 and 20; the last one is the fastest
        assert found["plain_tokens_per_second"] == 15.0
        assert found["speculative_config"] == found["timed"][-1]["options"]
    else:
        assert found["speculative_config"] == found["predicted"][0]["config"]


def test_a_draft_model_by_another_name_is_read_once(pair: Pair) -> None:
    """The loaded one takes its place, as it does that of `model`."""
    config = {"method": "sps", "assistant_model": pair.draft}
    tuner = Tuner(LLM(pair.target), config, PROMPTS[:1], SHORT)
    assert tuner.predicted(config).mean_acceptance_length >= 1

"""The search for a method's fastest options."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.bench.measure import costs
from foretoken.testing import Pair
from foretoken.testing.checks import PROMPTS
from foretoken.tune.options import Candidate, Tuner, tune

SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
CONFIG = {"method": "pld", "prompt_lookup_max": 2}
THRESHOLD = "assistant_confidence_threshold"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast memory is read has a test of its own, and decides nothing here."""
    monkeypatch.setattr(costs, "_ARRAY_BYTES", 2**16)


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


def bare() -> Any:
    """A tuner that has measured nothing."""
    return Tuner.__new__(Tuner)


def test_another_one_is_first_in_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is served after a pause isn't always the same."""
    tuner, order = bare(), list[str]()
    stats = SimpleNamespace(tokens=6, decode_time=2.0)
    monkeypatch.setattr(tuner, "_serve", lambda llm: (order.append(llm), stats)[1])
    for turn in range(3):
        assert tuner._round(["a", "b", "c"], turn) == [3.0] * 3
    assert "".join(order) == "abcbcacab"


def test_each_prompt_is_served_anew() -> None:
    """By a drafter that has learned nothing of others; statistics are of these prompts alone."""
    calls: list[Any] = []
    drafter = SimpleNamespace(shared=SimpleNamespace(reset=lambda: calls.append("forget")))
    llm = SimpleNamespace(
        reset_stats=lambda: calls.append("count"),
        engine=SimpleNamespace(drafter=drafter),
        generate=lambda prompts, params, raise_on_error: calls.extend(prompts),
        stats="counted",
    )
    tuner = bare()
    tuner._prompts, tuner._params = [[1], [2]], SHORT
    assert tuner._serve(llm) == "counted"
    assert calls == ["count", "forget", [1], "forget", [2]]


def test_answers_take_their_whole_time(pair: Pair) -> None:
    """No prompt that was read for one of them is there for the next."""
    tuner = bare()
    tuner._llm, tuner._draft = LLM(pair.target, enable_prefix_caching=True), None
    for llm, cached in ((tuner._llm, True), (tuner._make(CONFIG), False)):
        outputs = [llm.generate([PROMPTS[0]], SHORT)[0] for _ in range(2)]
        assert [bool(output.num_cached_tokens) for output in outputs] == [False, cached]


def test_the_given_config_is_timed_once(pair: Pair) -> None:
    """Beside others, also where the search finds it among the best."""
    other = {**CONFIG, "prompt_lookup_min": 2}
    timed: list[dict[str, Any]] = []

    def clocked(configs: Any, rounds: int, advance: Any) -> list[list[float]]:
        timed.extend(configs)
        return [[1.0, *(2.0 + place for place in range(len(configs)))]]

    found = [Candidate(config, 9.0, 2.0) for config in (other, CONFIG, other)]
    tuner: Any = SimpleNamespace(search=lambda *given: found, clocked=clocked, interrupted=False)
    options: Any = {"trials": 3, "finalists": 3, "rounds": 1, "seed": 0, "advance": lambda: None}
    assert tune(tuner, CONFIG, **options)["speculative_config"] == other
    assert timed == [CONFIG, other]


def test_a_speedup_is_of_one_round() -> None:
    """The median of the rounds' own ratios: the machine may be slow in one of them."""
    rounds = [[10.0, 20.0], [40.0, 60.0], [20.0, 50.0]]
    found = [Candidate(CONFIG, 9.0, 2.0)]
    tuner: Any = SimpleNamespace(
        search=lambda *given: found, clocked=lambda *given: rounds, interrupted=False
    )
    options: Any = {"trials": 1, "finalists": 1, "rounds": 3, "seed": 0, "advance": lambda: None}
    tuned = tune(tuner, CONFIG, **options)
    assert tuned["speedup"] == 2.0
    assert (tuned["plain_tokens_per_second"], tuned["tokens_per_second"]) == (20.0, 50.0)


def test_the_best_by_prediction_comes_first() -> None:
    pytest.importorskip("optuna")
    tuner, speeds = bare(), iter([3.0, 1.0, 4.0, 2.0])
    tuner._config, tuner.space = CONFIG, {}
    tuner.predicted = lambda config: Candidate(config, next(speeds), 2.0)
    found = tuner.search(4, 0, lambda: None)
    assert [one.tokens_per_second for one in found] == [4.0, 3.0, 2.0, 1.0]

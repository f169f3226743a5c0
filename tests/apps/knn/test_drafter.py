"""A cache of neighbours changes the number of searches and nothing else."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.apps.knn import CachedNeighbours, KnnModel, Neighbours
from foretoken.apps.knn.drafter import _Memory
from foretoken.apps.ralm.stride import FixedStride
from foretoken.drafters.small_lm import SmallLM
from foretoken.models.native.backends import kernels
from foretoken.models.native.build import build_native
from foretoken.testing import Pair, tiny_transformers

PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6], [5]]
SETTINGS = {
    "greedy": SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
    "seeded": SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True),
    "edited": SamplingParams(
        temperature=0.7, seed=5, top_p=0.9, repetition_penalty=1.3, max_tokens=30, ignore_eos=True
    ),
}


def ids(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    return [out.outputs[0].token_ids for out in llm.generate(prompts, params)]


def speculating(knn: KnnModel, **options: Any) -> LLM:
    return LLM(knn.lm, speculative_config={"method": CachedNeighbours(knn, **options)})


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_plain_loops_text(knn: KnnModel, setting: str) -> None:
    """Alone and together, at every stride; some guesses are right and some are wrong, and searches
    are saved."""
    params = SETTINGS[setting]
    with LLM(knn.lm) as plain:
        expected = ids(plain, PROMPTS, params)
    for stride in (1, 2, 3, 5, None):
        with speculating(knn, speculation_stride=stride) as llm:
            before = knn.searches
            assert [ids(llm, [prompt], params)[0] for prompt in PROMPTS] == expected
            searches = knn.searches - before
            assert ids(llm, PROMPTS, params) == expected
            stats = llm.stats
            assert 0 < stats.accepted < stats.drafted
            assert searches < 3 * 30 * (0.9 if stride != 5 else 0.7)


def test_a_guess_is_right_where_the_cache_has_all(knn: KnnModel) -> None:
    """Drawn with the places' own noise: as often as at temperature 0, which is always."""
    for name in ("greedy", "seeded"):
        params = replace(SETTINGS[name], max_tokens=12)
        every = len(knn.neighbours)
        with speculating(knn, speculation_stride=4, following=every, cached=every) as llm:
            ids(llm, PROMPTS[:1], params)
            early = llm.stats.drafted - llm.stats.accepted
        with speculating(knn, speculation_stride=4, following=0, cached=24) as llm:
            ids(llm, PROMPTS[:1], params)
            assert early < llm.stats.drafted - llm.stats.accepted


def test_each_sequence_has_its_own_cache(knn: KnnModel) -> None:
    """Together, as many guesses are right as one after the other."""
    with speculating(knn, speculation_stride=3, following=2, cached=72) as llm:
        for prompt in PROMPTS:
            ids(llm, [prompt], SETTINGS["greedy"])
        alone = llm.stats.accepted, llm.stats.drafted
        llm.reset_stats()
        ids(llm, PROMPTS, SETTINGS["greedy"])
        assert (llm.stats.accepted, llm.stats.drafted) == alone


def test_the_models_passes_arent_made_twice(
    pair: Pair, knn: KnnModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer runs once for each token, drafted or written, and its search is one for a step."""
    with speculating(knn, speculation_stride=3) as llm:
        target = llm.engine.target
        passes = []
        monkeypatch.setattr(
            knn.lm,
            "_attention",
            lambda states, index, *rest, of=knn.lm._attention: (
                passes.append(states.shape[1]) if index == 0 else None,
                of(states, index, *rest),
            )[1],
        )
        searches = knn.searches
        ids(llm, [[7]], SETTINGS["greedy"])
        assert target.draft_passes > 0
        stats = llm.stats
        assert sum(passes) == stats.drafted + stats.passes
        assert knn.searches - searches == stats.passes


@pytest.mark.skipif(
    not kernels.supports(torch.float32, torch.device("cpu")), reason="can't build the loops"
)
def test_drafts_of_several_lengths_by_the_loops(
    corpus: list[list[int]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A prediction beside them, after which scoring starts anew: each step is one search, and its
    rows are the pass's own."""
    model = tiny_transformers(width=128, dtype=torch.float32)  # heads that fill registers
    weights = model.state_dict().__getitem__
    base = build_native(model.config, weights, torch.float32, torch.device("cpu"), "panels")
    knn = KnnModel(base, Neighbours.build(base, corpus), k=24, weight=0.5, distance_temperature=3.0)
    assert knn.lm.whole is not None
    params, prompts = SETTINGS["greedy"], PROMPTS[:2]
    with LLM(knn.lm) as plain:
        expected = ids(plain, prompts, params)
    caplog.set_level(logging.WARNING, "foretoken")
    with speculating(knn, speculation_stride=3) as llm:
        scores, score = list[Any](), llm.engine.target.score
        monkeypatch.setattr(
            llm.engine.target, "score", lambda *given: (scores.append(given), score(*given))[1]
        )
        before = knn.searches
        each = [replace(params, prediction=expected[0][:20]), params]
        found = [out.outputs[0].token_ids for out in llm.generate(prompts, each)]
        assert llm.stats.accepted_prediction_tokens > 0
    assert found == expected and "start again" not in caplog.text
    assert knn.searches - before == len(scores)


def test_what_a_cache_keeps(knn: KnnModel) -> None:
    """What was found, then what follows it, the latest first, and nothing past the end."""
    memory = _Memory(knn.neighbours, FixedStride(1))
    memory.insert([np.array([4, 5])], 2, 100)
    assert memory.ids.tolist() == [4, 5, 6, 7]
    last = len(knn.neighbours) - 1
    memory.insert([np.array([6]), np.array([last])], 1, 5)
    assert memory.ids.tolist() == [last, 6, 7, 4, 5]
    memory.insert([np.array([0])], 0, 3)
    assert memory.ids.tolist() == [0, last, 6]
    query = knn.neighbours.keys[6] + np.float32(0.01)
    tokens, distances = memory.nearest(query, 1)
    assert tokens.tolist() == [knn.neighbours.tokens[6]]
    assert distances[0] == pytest.approx(32 * 1e-4, rel=0.05)


def test_a_full_cache_keeps_what_was_found(knn: KnnModel) -> None:
    """Of one search as of several: no entry that follows another takes the place of one that was
    found, and the nearest followers stay, wherever in the datastore they are."""
    memory, last = _Memory(knn.neighbours, FixedStride(1)), len(knn.neighbours) - 1
    earlier, later = np.array([0, 40, last - 3]), np.array([20, last - 9])
    memory.insert([earlier, later], 10, 5)
    assert memory.ids.tolist() == [20, last - 9, 0, 40, last - 3]
    memory.insert([later], 3, 6)
    assert memory.ids.tolist() == [20, last - 9, 21, last - 8, 22, last - 7]


def test_another_target(pair: Pair, knn: KnnModel) -> None:
    drafter = CachedNeighbours(KnnModel(pair.target, knn.neighbours))
    with LLM(pair.target, speculative_config={"method": drafter}) as llm:
        [out] = llm.generate([[1, 2]], SETTINGS["greedy"])
        assert "give LLM the `lm`" in str(out.error)


def test_options(knn: KnnModel) -> None:
    for name in ("speculation_stride", "num_speculative_tokens", "cached"):
        with pytest.raises(ForetokenError, match=f"{name} is 0"):
            CachedNeighbours(knn, **{name: 0})
    with pytest.raises(ForetokenError, match="following is -1"):
        CachedNeighbours(knn, following=-1)


def test_a_rule_that_draws_again_is_refused(pair: Pair, knn: KnnModel) -> None:
    """It would do so with the noise by which the guess was drawn, which it takes for independent:
    of three equally likely tokens it would write one more than twice as often as another."""
    joined = [CachedNeighbours(knn), SmallLM(pair.draft)]
    for config in (
        {"method": CachedNeighbours(knn), "verifier": "speculative"},
        {"method": CachedNeighbours(knn), "verifier": "block"},
        {"method": "auto", "drafters": joined, "remember": False},
    ):
        with pytest.raises(ForetokenError, match="use a verifier that compares"):
            LLM(knn.lm, speculative_config=config)
    with LLM(
        knn.lm, speculative_config={"method": CachedNeighbours(knn), "verifier": "gumbel"}
    ) as llm:
        ids(llm, PROMPTS, SETTINGS["seeded"])
        assert llm.stats.accepted > 0


def test_a_text_may_fill_the_context(knn: KnnModel) -> None:
    """No guess goes beyond its end."""
    params = replace(SETTINGS["greedy"], max_tokens=None)
    config = {"method": CachedNeighbours(knn, speculation_stride=8)}
    with LLM(knn.lm, max_model_len=24) as plain:
        expected = ids(plain, PROMPTS, params)
    with LLM(knn.lm, max_model_len=24, speculative_config=config) as llm:
        assert ids(llm, PROMPTS, params) == expected
        assert llm.stats.drafted > 0 and len(expected[0]) > 16


def test_however_many_entries_may_follow(knn: KnnModel) -> None:
    """There are no more than the datastore has, and no memory is asked for more."""
    memory = _Memory(knn.neighbours, FixedStride(1))
    memory.insert([np.array([4])], 10**15, 10**15)
    assert memory.ids.tolist() == list(range(4, len(knn.neighbours)))

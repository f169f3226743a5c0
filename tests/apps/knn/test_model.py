"""The mixture is the papers', whatever drafts for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.apps.knn import KnnModel, Neighbours
from foretoken.testing import Pair


def test_the_mixture(pair: Pair, knn: KnnModel) -> None:
    """By hand, with transformers: equation 3 over all distances, ten greedy tokens."""
    prompt = [3, 1, 4, 1, 5]
    text = list(prompt)
    store, differs = knn.neighbours, False
    for _ in range(10):
        with torch.inference_mode():
            out = pair.transformers(torch.tensor([text]), output_hidden_states=True)
        distances = np.square(store.keys - out.hidden_states[-1][0, -1].numpy()).sum(-1)
        near = np.argsort(distances, kind="stable")[:24]
        shares = np.exp(-(distances[near] - distances[near].min()) / 3.0)
        theirs = np.zeros(97)
        np.add.at(theirs, store.tokens[near], shares / shares.sum())
        alone = out.logits[0, -1].double().softmax(-1).numpy()
        mixed = 0.5 * theirs + 0.5 * alone
        differs |= bool(mixed.argmax() != alone.argmax())
        text.append(int(mixed.argmax()))
    with LLM(knn.lm) as llm:
        params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=1)
        [out] = llm.generate([prompt], params)
    assert out.outputs[0].token_ids == text[5:]
    assert differs
    assert out.outputs[0].logprobs[-1][text[-1]].logprob == pytest.approx(np.log(mixed.max()))


@pytest.mark.parametrize("weight", [0, 1])
def test_one_of_the_two_alone(pair: Pair, neighbours: Neighbours, weight: float) -> None:
    knn = KnnModel(pair.target, neighbours, k=3, weight=weight, distance_temperature=3.0)
    state = torch.from_numpy(neighbours.keys[:2]).double()[None]
    probs = knn.lm.head(state).softmax(-1)
    assert not probs.isnan().any()
    if weight:
        assert ((probs > 0).sum(-1) <= 3).all()
    else:
        torch.testing.assert_close(probs, pair.target.head(state).softmax(-1))


def test_any_method_drafts_for_it(pair: Pair, knn: KnnModel) -> None:
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    with LLM(knn.lm) as plain:
        [expected] = plain.generate([[9, 8, 7]], params)
    for config in ({"method": "sps", "model": pair.draft}, {"method": "pld"}):
        with LLM(knn.lm, speculative_config=config) as llm:
            [out] = llm.generate([[9, 8, 7]], params)
        assert out.outputs[0].token_ids == expected.outputs[0].token_ids


def test_what_is_refused(pair: Pair, neighbours: Neighbours) -> None:
    for options, said in (
        ({"k": 0}, "k is 0"),
        ({"weight": 1.5}, "weight is 1.5"),
        ({"distance_temperature": 0}, "distance_temperature is 0"),
    ):
        with pytest.raises(ForetokenError, match=said):
            KnnModel(pair.target, neighbours, **options)
    with pytest.raises(ForetokenError, match="runs by transformers"):
        KnnModel(pair.transformers, neighbours)
    for store in (Neighbours(np.ones((1, 3)), [1]), Neighbours(np.ones((1, 32)), [97])):
        with pytest.raises(ForetokenError, match="build it by this model"):
            KnnModel(pair.target, store)


def test_searches_and_places_are_counted(pair: Pair, neighbours: Neighbours) -> None:
    """A pass is one search, for as many places as it has."""
    knn = KnnModel(pair.target, neighbours, k=3)
    for count in (5, 2):
        knn.lm.head(torch.from_numpy(neighbours.keys[:count]).double()[None])
    assert (knn.searches, knn.queries) == (2, 7) and knn.search_time > 0

"""A tiny model, its texts as a corpus, and their neighbours."""

from __future__ import annotations

import random

import pytest

from foretoken import LLM, SamplingParams
from foretoken.apps.knn import KnnModel, Neighbours
from foretoken.testing import Pair


@pytest.fixture(scope="session")
def corpus(pair: Pair) -> list[list[int]]:
    """Texts that the model has written, and random ones; the last is shorter than a window."""
    chosen = random.Random(0)
    noise = [[chosen.randrange(97) for _ in range(60)] for _ in range(40)]
    with LLM(pair.target) as llm:
        params = SamplingParams(temperature=1.0, seed=1, max_tokens=70, ignore_eos=True)
        outputs = llm.generate([run[:5] for run in noise[:20]], params)
    written = [out.prompt_token_ids + out.outputs[0].token_ids for out in outputs]
    return [*noise, *written, [5, 6, 7]]


@pytest.fixture(scope="session")
def neighbours(pair: Pair, corpus: list[list[int]]) -> Neighbours:
    return Neighbours.build(pair.target, corpus, window=32)


@pytest.fixture(scope="session")
def knn(pair: Pair, neighbours: Neighbours) -> KnnModel:
    return KnnModel(pair.target, neighbours, k=24, weight=0.5, distance_temperature=3.0)

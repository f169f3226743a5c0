"""A tiny model, and retrievers of texts that are like its own."""

from __future__ import annotations

import pytest

from foretoken import LLM
from foretoken.apps.ralm import Bm25, Dense
from foretoken.testing import ByteTokenizer, Pair
from ralm_corpus import CORPUS, embed


@pytest.fixture(scope="session")
def corpus() -> list[str]:
    return CORPUS


@pytest.fixture(scope="session")
def bm25(corpus: list[str]) -> Bm25:
    return Bm25(corpus, tokenize=list)


@pytest.fixture(scope="session")
def dense(corpus: list[str]) -> Dense:
    return Dense(corpus, embed)


@pytest.fixture(scope="session")
def llm(pair: Pair) -> LLM:
    return LLM(pair.target, tokenizer=ByteTokenizer(97))

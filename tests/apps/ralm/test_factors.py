"""Both factors are measured, on texts that are compared."""

from __future__ import annotations

from typing import cast

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.apps.ralm import Bm25, Ralm, factors
from foretoken.apps.ralm.factors import Factors
from foretoken.apps.ralm.outputs import RalmOutput, RalmStats
from foretoken.apps.ralm.ralm import Options
from foretoken.engine.stats import AcceptanceStats
from foretoken.testing import ByteTokenizer, Pair

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SHORT = {"query_tokens": 12, "max_document_tokens": 32}


def test_the_factors() -> None:
    measured = Factors(6.0, 3.0, 2.0, 0, 0.5, 1.25)
    assert (measured.retrieval, measured.decoding, measured.total) == (2.0, 1.5, 3.0)
    assert str(measured) == (
        "3.00× in all: retrieval 2.00× (match rate 0.50), decoding 1.50× (mean acceptance length "
        "1.25); 0 texts differ"
    )


def test_three_ways_are_compared(pair: Pair, llm: LLM, bm25: Bm25) -> None:
    plain = Ralm(llm, bm25, **SHORT)
    with LLM(
        pair.target,
        tokenizer=ByteTokenizer(97),
        speculative_config={"method": "sps", "model": pair.draft},
    ) as fast:
        found = factors(plain, Ralm(fast, bm25, **SHORT), ["ab", "xyz"], PARAMS)
    assert min(found.plain_time, found.guessed_time, found.drafted_time) > 0
    assert found.different == 0
    assert 0 < found.match_rate <= 1 < found.mean_acceptance_length


def test_texts_that_differ_are_counted(pair: Pair, llm: LLM, bm25: Bm25) -> None:
    """Of another model, all."""
    with LLM(pair.draft, tokenizer=ByteTokenizer(97)) as other:
        found = factors(Ralm(llm, bm25, **SHORT), Ralm(other, bm25, **SHORT), ["ab", "xyz"], PARAMS)
    assert found.different == 2


def test_what_cant_be_compared(llm: LLM, bm25: Bm25) -> None:
    plain = Ralm(llm, bm25, **SHORT)
    with pytest.raises(ForetokenError, match="no prompts"):
        factors(plain, plain, [], PARAMS)
    with pytest.raises(ForetokenError, match="different options"):
        factors(plain, Ralm(llm, bm25, prefetch=3), ["a"], PARAMS)


class Noted:
    """Notes what is asked of it, which takes no time."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.options, self._name, self._calls = Options(), name, calls

    def generate(self, prompt: str, params: SamplingParams) -> RalmOutput:
        return self._served(self._name)

    def generate_plain(self, prompt: str, params: SamplingParams) -> RalmOutput:
        return self._served("plain")

    def _served(self, way: str) -> RalmOutput:
        self._calls.append(way)
        stats = RalmStats(total_time=1.0, decoding=AcceptanceStats(tokens=3, passes=2))
        return RalmOutput("", "", [1], [0], "length", None, stats)


def test_none_of_the_ways_is_always_the_first() -> None:
    """What a prompt leaves in the machine's caches is of use to each in turn."""
    calls: list[str] = []
    first, second = (cast(Ralm, Noted(name, calls)) for name in ("guessed", "drafted"))
    found = factors(first, second, ["a", "b", "c"], PARAMS)
    ways = ["plain", "guessed", "drafted"]
    assert calls == [*ways, *ways[1:], ways[0], *ways[2:], *ways[:2]]
    assert (found.plain_time, found.guessed_time, found.drafted_time) == (3.0, 3.0, 3.0)

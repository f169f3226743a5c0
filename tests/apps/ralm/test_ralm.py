"""Guessed documents change the number of retrievals and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.apps.ralm import Bm25, Dense, Ralm
from foretoken.apps.ralm.outputs import RalmOutput
from foretoken.apps.ralm.retriever import Retriever
from foretoken.apps.ralm.stride import FixedStride, Round
from foretoken.testing import ByteTokenizer, Pair

TOKENIZER = ByteTokenizer(97)
PROMPTS = ["where is it", "Zebra!"]
GREEDY = SamplingParams(temperature=0, max_tokens=26, ignore_eos=True)
SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=26, ignore_eos=True)
SHORT = {"prefetch": 2, "query_tokens": 12, "max_document_tokens": 32}
STRIDES = (1, 2, 3, 5, None)


def settings(bm25: Bm25, dense: Dense) -> Iterator[tuple[Retriever, SamplingParams]]:
    yield from product((bm25, dense), (GREEDY, SEEDED))


def told(out: RalmOutput) -> tuple[object, ...]:
    return out.token_ids, out.text, out.documents, out.finish_reason, out.stop_reason


def test_the_plain_loops_text(llm: LLM, bm25: Bm25, dense: Dense) -> None:
    """Ids, documents and ends, at every stride, with and without waiting, greedy and seeded; some
    guesses are right and some are wrong."""
    for retriever, params in settings(bm25, dense):
        matched = wrong = 0
        plain = Ralm(llm, retriever, **SHORT)
        expected = [told(plain.generate_plain(prompt, params)) for prompt in PROMPTS]
        for stride, waits_not in product(STRIDES, (False, True)):
            ralm = Ralm(llm, retriever, speculation_stride=stride, asynchronous=waits_not, **SHORT)
            outputs = [ralm.generate(prompt, params) for prompt in PROMPTS]
            assert [told(out) for out in outputs] == expected
            matched += sum(out.stats.matched for out in outputs)
            wrong += sum(out.stats.wrong for out in outputs)
        assert matched >= 10 and wrong >= 10


def test_the_plain_loop(pair: Pair, llm: LLM, bm25: Bm25, corpus: list[str]) -> None:
    """By hand, with transformers: the best document for the last letters, four tokens, again."""
    out = Ralm(llm, bm25, **SHORT).generate_plain(PROMPTS[0], GREEDY)
    text, documents = "", []
    while len(text) < 26:
        query = bm25.encode((PROMPTS[0] + text)[-12:])
        best = int(bm25.scores(query, np.arange(len(corpus))).argmax())
        ids = torch.tensor([TOKENIZER.encode(f"{corpus[best]}\n\n{PROMPTS[0]}{text}")])
        more = pair.transformers.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=min(4, 26 - len(text)),
            do_sample=False,
        )
        text += TOKENIZER.decode(more[0, ids.shape[1] :].tolist())
        documents.append(best)
    assert (out.text, out.documents) == (text, documents)
    assert len(set(documents)) > 2
    stats = out.stats
    assert (stats.pieces, stats.searches, stats.queries) == (7, 7, 7)
    assert (stats.dropped, stats.matched, stats.wrong, stats.strides) == (0, 0, 0, [])


def test_texts_that_end_early(llm: LLM, bm25: Bm25) -> None:
    """A stop that a wrong document led to is taken back with it; others are found where plain
    retrieval finds them."""
    reasons = set()
    for seed, waits_not in product(range(6), (False, True)):
        params = SamplingParams(
            temperature=1.0, seed=seed, max_tokens=26, stop=["a", "QQ"], stop_token_ids=[5, 9, 40]
        )
        ralm = Ralm(llm, bm25, speculation_stride=3, asynchronous=waits_not, **SHORT)
        out = ralm.generate(PROMPTS[0], params)
        assert told(out) == told(ralm.generate_plain(PROMPTS[0], params))
        reasons.add(out.stop_reason)
    assert len(reasons) > 2


def test_each_piece_may_speculate(pair: Pair, llm: LLM, bm25: Bm25) -> None:
    """With prompt lookup the text is plain decoding's too, greedy and seeded; with drawn drafts it
    is the plain loop's with the same method."""
    with LLM(pair.target, tokenizer=TOKENIZER, speculative_config={"method": "pld"}) as copying:
        for params in (GREEDY, SEEDED):
            plain = Ralm(llm, bm25, **SHORT).generate_plain(PROMPTS[1], params)
            out = Ralm(copying, bm25, speculation_stride=3, **SHORT).generate(PROMPTS[1], params)
            assert told(out) == told(plain)
        assert out.stats.decoding.drafted > 0
    drawing = {"method": "sps", "model": pair.draft, "num_speculative_tokens": 3}
    with LLM(pair.target, tokenizer=TOKENIZER, speculative_config=drawing) as small:
        ralm = Ralm(small, bm25, speculation_stride=3, **SHORT)
        out = ralm.generate(PROMPTS[1], SEEDED)
        assert told(out) == told(ralm.generate_plain(PROMPTS[1], SEEDED))
        assert out.stats.decoding.accepted > 0


def test_a_bundled_model() -> None:
    """In float32, with words, prompt lookup and OS³: the plain loop's text."""
    documents = [
        "The lighthouse of Marrow Point was built by Ada Finch.",
        "Ada Finch was born in Dunmore, where her father mended clocks.",
        "What is the first time that a clock has a river?",
    ]
    with LLM("mini", speculative_config={"method": "pld"}) as mini:
        ralm = Ralm(mini, Bm25(documents), prefetch=1, query_tokens=8)
        for params in (GREEDY, SEEDED):
            out = ralm.generate("Who built the lighthouse?", params)
            assert told(out) == told(ralm.generate_plain("Who built the lighthouse?", params))


class Watched:
    """A retriever of two documents that takes turns: which one, by the length of the text."""

    documents = ("red", "blue")

    def __init__(self) -> None:
        self.searches: list[list[int]] = []
        self.threads: set[str] = set()

    def encode(self, text: str) -> int:
        return len(text)

    def search(self, queries: Any, k: int) -> list[list[int]]:
        self.searches.append(list(queries))
        self.threads.add(threading.current_thread().name)
        return [self._order(query)[:k] for query in queries]

    def scores(self, query: int, ids: Any) -> Any:
        order = self._order(query)
        return np.array([-float(order.index(i)) for i in ids])

    @staticmethod
    def _order(query: int) -> list[int]:
        """The second document from eight letters after the prompt `abc` on."""
        return [1, 0] if query >= 11 else [0, 1]


def test_what_is_counted(llm: LLM) -> None:
    """One retrieval for each round. Pieces are written at lengths 3, 7, 11 and 15. With
    one document prefetched, the guess at 11 is wrong; from then on both are in the cache."""
    watched = Watched()
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    out = Ralm(llm, watched, speculation_stride=3, prefetch=1, max_document_tokens=9).generate(
        "abc", params
    )
    assert watched.searches == [[3], [7, 11, 15], [15]]
    assert out.documents == [0, 0, 1, 1]
    stats = out.stats
    assert (stats.matched, stats.wrong, stats.strides) == (2, 1, [3, 1])
    assert (stats.pieces, stats.dropped) == (6, 2)
    assert (stats.searches, stats.queries) == (3, 5)
    assert stats.match_rate == 2 / 3
    assert all(name.startswith("retrieval") for name in watched.threads - {"MainThread"})
    assert stats.total_time > stats.writing_time > 0


def test_a_cache_that_is_small(pair: Pair) -> None:
    """A long document is guessed where a short one is right: it fits too, so a text may be as long
    as after the longest document, by both loops."""

    class Uneven(Watched):
        documents = ("red " * 25, "blue")

    options = {"speculation_stride": 3, "prefetch": 1, "max_document_tokens": 100}
    fixed = 100 + len("\n\nabc")
    with LLM(pair.target) as roomy:
        needs = roomy.engine.target.budget.needs(120)
    with LLM(pair.target, tokenizer=TOKENIZER, kv_cache_memory=needs) as tight:
        most = tight.engine.target.budget.longest(256)
        assert 120 <= most < 150
        ralm = Ralm(tight, Uneven(), **options)
        endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        out = ralm.generate("abc", endless)
        assert told(out) == told(ralm.generate_plain("abc", endless))
        assert len(out.token_ids) == most - fixed and out.finish_reason == "length"
        assert out.stats.wrong > 0 and set(out.documents) == {0, 1}
        for write in (ralm.generate, ralm.generate_plain):
            with pytest.raises(ForetokenError, match=f"the caches hold {most}; .* raise kv_cache"):
                write("abc", SamplingParams(max_tokens=most - fixed + 1))


def test_writing_goes_on_meanwhile(llm: LLM) -> None:
    """While a retrieval runs, one more piece is written: it can wait for it."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    written, generate = threading.Event(), llm.generate

    class Waiting(Watched):
        def search(self, queries: Any, k: int) -> list[list[int]]:
            if queries == [7]:
                assert written.wait(20)
            return super().search(queries, k)

    def noting(prompt: Any, params: Any) -> Any:
        out = generate(prompt, params)
        if len(prompt["prompt_token_ids"]) == len("red\n\nabc") + 8:
            written.set()
        return out

    watched = Waiting()
    noted: Any = SimpleNamespace(generate=noting, tokenizer=llm.tokenizer, engine=llm.engine)
    ralm = Ralm(
        noted,
        watched,
        speculation_stride=1,
        asynchronous=True,
        prefetch=1,
        max_document_tokens=9,
    )
    out = ralm.generate("abc", params)
    assert out.documents == [0, 0, 1]
    assert out.stats.dropped == 1  # the piece that was written meanwhile, after the wrong one


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retrieve_every": 0}, "retrieve_every is 0; it must be at least 1"),
        ({"speculation_stride": 0}, "speculation_stride is 0"),
        ({"speculation_stride": "os3"}, "speculation_stride is 'os3'"),
        ({"prefetch": 0}, "prefetch is 0"),
        ({"query_tokens": 0}, "query_tokens is 0"),
        ({"max_document_tokens": 0}, "max_document_tokens is 0"),
        ({"asynchronous": 1}, "asynchronous is 1"),
        ({"template": "no"}, "each once"),
        ({"stride": 3}, "Unknown option of Ralm 'stride'"),
    ],
)
def test_options(llm: LLM, bm25: Bm25, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        Ralm(llm, bm25, **options)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("found", [[], [[]], [[2]], [[-1]]])
def test_retrievers_that_fail(llm: LLM, found: list[list[int]], asynchronous: bool) -> None:
    """What one raises, or finds where there is nothing, is one sentence, on either thread."""
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    watched: Any = Watched()
    ralm = Ralm(llm, watched, asynchronous=asynchronous, max_document_tokens=9)
    watched.search = lambda queries, k: [[0]] if 3 in queries else found
    with pytest.raises(ForetokenError, match="it must give each a list of ids below 2"):
        ralm.generate("abc", params)
    watched.search = lambda queries, k: [[0]] if 3 in queries else 1 / 0
    with pytest.raises(ForetokenError, match="The retriever raised ZeroDivisionError"):
        ralm.generate("abc", params)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_the_stride_is_told(
    llm: LLM, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round's pieces, those with the right document, and both times; a retrieval that is
    written through is waited for less long than it takes."""
    rounds: list[Round] = []
    note = FixedStride.note
    monkeypatch.setattr(FixedStride, "note", lambda s, done: (rounds.append(done), note(s, done)))

    class Slow(Watched):
        def search(self, queries: Any, k: int) -> list[list[int]]:
            time.sleep(0.08)
            return super().search(queries, k)

    def slowly(prompt: Any, params: Any) -> Any:
        time.sleep(0.04)
        return llm.generate(prompt, params)

    slow: Any = SimpleNamespace(generate=slowly, tokenizer=llm.tokenizer, engine=llm.engine)
    ralm = Ralm(
        slow,
        Slow(),
        speculation_stride=3,
        asynchronous=asynchronous,
        prefetch=1,
        max_document_tokens=9,
    )
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    stats = ralm.generate("abc", params).stats
    assert [(done.pieces, done.matched) for done in rounds] == [(3, 1), (3, 3)]
    assert all(done.search_time >= 0.08 and done.piece_time >= 0.04 for done in rounds)
    assert stats.search_time >= 3 * 0.08 and stats.writing_time >= stats.pieces * 0.04
    assert (stats.waiting_time < stats.search_time) == asynchronous
    assert stats.dropped == 2 + asynchronous


def test_no_text(llm: LLM, bm25: Bm25) -> None:
    with pytest.raises(ForetokenError, match="prompt is"):
        Ralm(llm, bm25).generate([1, 2])  # type: ignore[arg-type]

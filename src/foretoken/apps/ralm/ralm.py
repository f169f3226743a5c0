"""`Ralm`: text with retrieval every few tokens, where the documents are guessed and verified.

    ralm = Ralm(LLM("path-or-hub-id"), Bm25(documents))
    out = ralm.generate("Who …?", SamplingParams(temperature=0, max_tokens=64))

Source: Zhang et al. 2024 (RaLMSpec), algorithm 1. Before each piece of `retrieve_every` tokens the
best document for the text so far is put before the prompt, in place of the one before (Ram et al.
2023). A retrieval over the corpus takes long, and one for several texts hardly longer. So a cache
of earlier documents guesses them, and after a few pieces one retrieval verifies all guesses: from
the first wrong one on the text is taken back, and goes on with the right document. Departures: the
first piece's document is known, not guessed, and counts for nothing; guesses of one round that
follow a wrong one count for nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, fields
from math import inf
from time import perf_counter
from typing import Any, NamedTuple, get_type_hints

from foretoken.apps.ralm.outputs import RalmOutput, RalmStats
from foretoken.apps.ralm.retriever import LocalCache, Retriever
from foretoken.apps.ralm.stride import FixedStride, OptimalStride, Round, Stride
from foretoken.apps.ralm.text import DOCUMENT, PROMPT, Layout, Text
from foretoken.errors import ForetokenError, described, shown, unknown
from foretoken.errors.values import check_range, typed
from foretoken.llm import LLM
from foretoken.sampling.params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Options:
    """How documents are retrieved.

    Attributes:
        retrieve_every: tokens of a piece, for which one document is retrieved.
        speculation_stride: pieces that one retrieval verifies; None lets OS³ choose.
        asynchronous: whether one more piece is written while a retrieval runs, on a thread.
        prefetch: documents that a retrieval puts into the cache for each text.
        query_tokens: how much of the text's end is looked up; None for all of it.
        max_document_tokens: how much of a document the model reads.
        template: the prompt of a piece, a text with "{document}" and "{prompt}".

    Raises `ForetokenError` for values of another type or out of range.
    """

    retrieve_every: int = 4
    speculation_stride: int | None = None
    asynchronous: bool = False
    prefetch: int = 20
    query_tokens: int | None = None
    max_document_tokens: int = 256
    template: str = f"{DOCUMENT}\n\n{PROMPT}"

    def __post_init__(self) -> None:
        hints = get_type_hints(Options)
        for field in fields(self):
            value = typed(field.name, getattr(self, field.name), hints[field.name])
            object.__setattr__(self, field.name, value)
        check_range(
            1,
            inf,
            retrieve_every=self.retrieve_every,
            speculation_stride=self.speculation_stride,
            prefetch=self.prefetch,
            query_tokens=self.query_tokens,
            max_document_tokens=self.max_document_tokens,
        )
        self.layout()

    def layout(self) -> Layout:
        return Layout(self.template, self.max_document_tokens, self.retrieve_every)

    def stride(self) -> Stride:
        if self.speculation_stride is None:
            return OptimalStride(self.asynchronous)
        return FixedStride(self.speculation_stride)


class Ralm:
    """Writes texts with documents from a corpus.

    Args:
        llm: the model; each piece is written by its decoding method, whichever that is.
        retriever: `Bm25`, `Dense`, `Hnsw`, or a `Retriever` of your own.
        options: of `Options`.
    """

    def __init__(self, llm: LLM, retriever: Retriever, **options: Any) -> None:
        known = [field.name for field in fields(Options)]
        for name in options:
            if name not in known:
                raise unknown("option of Ralm", name, known)
        self.llm, self.retriever, self.options = llm, retriever, Options(**options)

    def generate(self, prompt: str, params: SamplingParams | None = None) -> RalmOutput:
        """The text that `generate_plain` writes, with fewer retrievals over the corpus.

        The ids are the same at temperature 0, and with the same seed at any other, where the
        model's method drafts chosen tokens (docs/methods.md); where it draws its drafts, as long as
        these depend on the piece alone. Without a seed each request takes a new one from the
        system. Raises `ForetokenError` for what can't be served, and for what a retriever raises.
        """
        run = _Run(self, prompt, params)
        with ThreadPoolExecutor(1, "retrieval") as thread:
            run.begin()
            while not run.settled:
                run.verify(thread)
        return run.output()

    def generate_plain(self, prompt: str, params: SamplingParams | None = None) -> RalmOutput:
        """The same text with a retrieval over the corpus before each piece: the baseline."""
        run = _Run(self, prompt, params)
        while not run.text.ended:
            run.begin()
        return run.output()


class _Guess(NamedTuple):
    """A piece that was written after a guessed document. seconds: for both."""

    query: Any
    document: int
    seconds: float


class _Found(NamedTuple):
    """What one retrieval found for each query, and its seconds."""

    documents: list[list[int]]
    seconds: float


class _Run:
    """One request. guesses: pieces at the text's end whose documents are yet to be verified."""

    def __init__(self, ralm: Ralm, prompt: str, params: SamplingParams | None) -> None:
        self.started = perf_counter()
        self.prompt = typed("prompt", prompt, str)
        self.retriever, self.options = ralm.retriever, ralm.options
        chosen = SamplingParams() if params is None else params
        documents = self.retriever.documents
        self.text = Text(ralm.llm, documents, self.prompt, chosen, self.options.layout())
        self.cache, self.stride = LocalCache(self.retriever), self.options.stride()
        self.stats = RalmStats(decoding=self.text.decoding)
        self.guesses: list[_Guess] = []

    @property
    def settled(self) -> bool:
        return self.text.ended and not self.guesses

    def begin(self) -> None:
        """Retrieve one document over the whole corpus, and write a piece after it."""
        found = self._search([self._query()])
        self._note_search(found, found.seconds)
        self._write(found.documents[0][0])

    def verify(self, thread: Executor) -> None:
        """Write guessed pieces up to the stride, and verify them all by one retrieval."""
        # What is waiting was written while the last verification ran, and is the first.
        pieces = self.stride.next(len(self.guesses) + self.text.pieces_left)
        while len(self.guesses) < pieces and not self.text.ended:
            self.guesses.append(self._guess())
        todo, self.guesses = self.guesses, []
        searching = thread.submit(self._search, [guess.query for guess in todo])
        if self.options.asynchronous and not self.text.ended:
            self.guesses.append(self._guess())
        begun = perf_counter()
        found = searching.result()
        self._note_search(found, perf_counter() - begun)
        self._settle(todo, found)

    def _settle(self, todo: list[_Guess], found: _Found) -> None:
        """Keep the pieces whose documents are right, and correct the first whose isn't."""
        right = [ids[0] for ids in found.documents]
        pairs = enumerate(zip(todo, right, strict=True))
        matched = next((i for i, (guess, best) in pairs if guess.document != best), len(todo))
        piece_time = sum(guess.seconds for guess in todo) / len(todo)
        self.stride.note(Round(len(todo), matched, piece_time, found.seconds))
        self.stats.strides.append(len(todo))
        self.stats.matched += matched
        if matched < len(todo):
            self.stats.wrong += 1
            lost = len(todo) - matched + len(self.guesses)
            self.stats.dropped += lost
            self.guesses = []
            self.text.take_back(self.text.pieces - lost)
            self._write(right[matched])

    def _guess(self) -> _Guess:
        begun = perf_counter()
        query = self._query()
        document = self.cache.guess(query)
        self.stats.guessing_time += perf_counter() - begun
        self._write(document)
        return _Guess(query, document, perf_counter() - begun)

    def _query(self) -> Any:
        text = self.text.query(self.options.query_tokens)
        try:
            return self.retriever.encode(text)
        except Exception as error:
            raise described("The retriever", error) from error

    def _search(self, queries: Seq[Any]) -> _Found:
        """What is run on the other thread: it changes nothing."""
        begun = perf_counter()
        try:
            ranks = self.retriever.search(queries, self.options.prefetch)
            found = [[int(number) for number in ids] for ids in ranks]
        except Exception as error:
            raise described("The retriever", error) from error
        known = range(len(self.retriever.documents))
        if len(found) != len(queries) or any(
            len(ids) == 0 or not all(number in known for number in ids) for ids in found
        ):
            raise ForetokenError(
                f"The retriever found {shown(found)} for {len(queries)} queries; it must give each "
                f"a list of ids below {len(known)}, none of them empty."
            )
        return _Found(found, perf_counter() - begun)

    def _note_search(self, found: _Found, waited: float) -> None:
        self.cache.insert(found.documents)
        self.stats.searches += 1
        self.stats.queries += len(found.documents)
        self.stats.search_time += found.seconds
        self.stats.waiting_time += waited

    def _write(self, document: int) -> None:
        begun = perf_counter()
        self.text.write(document)
        self.stats.pieces += 1
        self.stats.writing_time += perf_counter() - begun

    def output(self) -> RalmOutput:
        ending = self.text.ending
        assert ending is not None and ending.finish_reason is not None
        self.stats.total_time = perf_counter() - self.started
        return RalmOutput(
            self.prompt,
            self.text.final(),
            list(self.text.output),
            list(self.text.documents),
            ending.finish_reason,
            ending.stop_reason,
            self.stats,
        )

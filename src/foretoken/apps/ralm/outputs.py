"""What a request gives back, and what it took."""

from __future__ import annotations

from dataclasses import dataclass, field

from foretoken.engine.stats import AcceptanceStats


@dataclass(slots=True)
class RalmStats:
    """What one request took.

    pieces: runs of the model, each of up to `retrieve_every` tokens after one document. dropped:
    those of them that were taken back. searches: retrievals over the corpus. queries: texts that
    they were for. wrong: verifications that found a wrong document. matched: guessed
    documents that were found to be right. strides: pieces of each verification.
    Seconds: writing_time of the model, search_time of retrievals over the corpus, waiting_time that
    was spent on them (less than search_time where writing went on), guessing_time of the cache,
    total_time of the request. decoding: passes and drafts of the model, in all pieces.
    """

    pieces: int = 0
    dropped: int = 0
    searches: int = 0
    queries: int = 0
    wrong: int = 0
    matched: int = 0
    strides: list[int] = field(default_factory=list)
    writing_time: float = 0.0
    search_time: float = 0.0
    waiting_time: float = 0.0
    guessing_time: float = 0.0
    total_time: float = 0.0
    decoding: AcceptanceStats = field(default_factory=AcceptanceStats)

    @property
    def match_rate(self) -> float:
        """How often a guess whose predecessors were right was right itself; 0 without a guess."""
        return self.matched / max(1, self.matched + self.wrong)


@dataclass(slots=True)
class RalmOutput:
    """A text that was written with documents. documents: the id of each piece's document, in order.
    finish_reason: "stop", or "length". stop_reason: the stop string or token id that ended it."""

    prompt: str
    text: str
    token_ids: list[int]
    documents: list[int]
    finish_reason: str
    stop_reason: str | int | None
    stats: RalmStats

"""Statistics of requests and engines. Tokens that were accepted after a stop don't count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import zip_longest


@dataclass(slots=True)
class AcceptanceStats:
    """Totals over steps. A step of a sequence is one target pass.

    tokens: emitted. passes: target passes. drafts: passes that checked a draft. drafted, accepted:
    draft tokens offered and kept. strayed: kept tokens that the lossless rule would have rejected.
    accepted_at[i]: drafts whose position i was kept; drafted_at[i]: drafts that reached position i.
    chosen: how many passes each drafter drafted for, where one is chosen at every step.
    accepted_prediction_tokens, rejected_prediction_tokens: of the requests' predictions, the tokens
    that were drafted and kept, and drafted and not; together all that were drafted of them. One
    that was rejected may be drafted again in another place, and counts again then.
    prefix_cache_queries: tokens of prompts that were looked up in what the caches have of earlier
    texts; prefix_cache_hits: those that were there, and were not read again.
    """

    tokens: int = 0
    passes: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    strayed: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    chosen: Counter[str] = field(default_factory=Counter)
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0

    def record(
        self,
        emitted: int,
        drafted: int,
        accepted: int,
        depth: int,
        strayed: int = 0,
        predicted: bool = False,
    ) -> None:
        """One pass: tokens emitted, nodes drafted, nodes accepted, depth of the draft; whether that
        was copied from a prediction."""
        self.tokens += emitted
        self.passes += 1
        self.drafted += drafted
        self.accepted += accepted
        self.strayed += strayed
        if predicted:
            self.accepted_prediction_tokens += accepted
            self.rejected_prediction_tokens += drafted - accepted
        if not drafted:
            return
        self.drafts += 1
        while len(self.drafted_at) < depth:
            self.drafted_at.append(0)
            self.accepted_at.append(0)
        for i in range(depth):
            self.drafted_at[i] += 1
        for i in range(accepted):
            self.accepted_at[i] += 1

    def add(self, other: AcceptanceStats) -> None:
        """Add another's totals to these."""
        self._combine(other, 1)

    def remove(self, other: AcceptanceStats) -> None:
        """Take another's totals, which were counted here, out of these."""
        self._combine(other, -1)
        self.chosen = +self.chosen  # without zeros
        while self.drafted_at and not self.drafted_at[-1]:  # no draft that is left went as deep
            self.drafted_at.pop()
            self.accepted_at.pop()

    def _combine(self, other: AcceptanceStats, sign: int) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))
        self.drafted_at = _sums(self.drafted_at, other.drafted_at, sign)
        self.accepted_at = _sums(self.accepted_at, other.accepted_at, sign)
        self.chosen.update({name: sign * count for name, count in other.chosen.items()})

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per target pass, the bonus token included; 0 before the first pass."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def stray_rate(self) -> float:
        """Share of the emitted tokens that the lossless rule would have refused."""
        return self.strayed / self.tokens if self.tokens else 0.0

    @property
    def acceptance_rate_per_position(self) -> list[float]:
        """Share of the drafts that reached a position in which it was accepted."""
        pairs = zip(self.accepted_at, self.drafted_at, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]


_COUNTS = (
    "tokens",
    "passes",
    "drafts",
    "drafted",
    "accepted",
    "strayed",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
)
"""The totals that are one number."""


def _sums(counts: list[int], others: list[int], sign: int) -> list[int]:
    """Position by position; what one list lacks counts as 0."""
    return [a + sign * b for a, b in zip_longest(counts, others, fillvalue=0)]


@dataclass(slots=True)
class RequestStats(AcceptanceStats):
    """One request's totals, and its times in seconds from arrival. queue_time: until its first
    sample was begun."""

    arrived: float = 0.0
    queue_time: float | None = None
    time_to_first_token: float | None = None
    total_time: float | None = None

    def copy(self) -> RequestStats:
        """The numbers as they stand now."""
        return replace(
            self,
            drafted_at=list(self.drafted_at),
            accepted_at=list(self.accepted_at),
            chosen=Counter(self.chosen),
        )


@dataclass(slots=True)
class EngineStats(AcceptanceStats):
    """All requests' totals, and seconds spent. `engine_steps` counts passes over a whole batch."""

    engine_steps: int = 0
    prefill_time: float = 0.0
    draft_time: float = 0.0
    verify_time: float = 0.0
    other_time: float = 0.0

    @property
    def decode_time(self) -> float:
        """Seconds outside prefill."""
        return self.draft_time + self.verify_time + self.other_time

    @property
    def ms_per_step(self) -> dict[str, float]:
        """Milliseconds of an engine step outside prefill: draft, verify (the pass) and other."""
        steps = max(1, self.engine_steps)
        parts = {"draft": self.draft_time, "verify": self.verify_time, "other": self.other_time}
        return {name: 1000 * seconds / steps for name, seconds in parts.items()}

"""How many pieces are written between two verifications.

Source: Zhang et al. 2024 (RaLMSpec), section 4 and its appendix: OS³, the optimal speculation
stride scheduler. With s pieces of a seconds each, a verification of b seconds and a rate γ at which
guessed documents are right, s is the one that verifies most pieces in a second.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from foretoken.errors.values import check_range


@dataclass(frozen=True)
class Round:
    """One verification. pieces: how many were verified. matched: how many of them, from the first
    on, had the right document. piece_time, search_time: seconds of one piece (guess and tokens),
    and of the retrieval that verified them all."""

    pieces: int
    matched: int
    piece_time: float
    search_time: float


class Stride(Protocol):
    """Chooses s. One is made for each request."""

    def note(self, done: Round) -> None:
        """Learn from a verification."""
        ...

    def next(self, most: int) -> int:
        """The pieces before the next verification, from 1 to `most`, which are left to write."""
        ...


class FixedStride:
    """Always the same number."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces

    def note(self, done: Round) -> None:
        pass

    def next(self, most: int) -> int:
        return min(self._pieces, most)


class OptimalStride:
    """OS³. It begins with 1, since nothing is known before the first verification.

    asynchronous: whether one more piece is written while a verification runs. window: how many
    verifications γ is estimated from. highest_rate: what it is bounded by (γ_max).
    """

    def __init__(self, asynchronous: bool, *, window: int = 5, highest_rate: float = 0.6) -> None:
        check_range(0, 1 - 1e-6, highest_rate=highest_rate)
        self._verified_per_second = asynchronous_rate if asynchronous else synchronous_rate
        self._highest = highest_rate
        self._rounds: deque[Round] = deque(maxlen=window)

    def note(self, done: Round) -> None:
        self._rounds.append(done)

    @property
    def rate(self) -> float:
        """γ: Σ matched / (Σ matched + rounds with a wrong document), and no more than the bound."""
        matched = sum(done.matched for done in self._rounds)
        wrong = sum(done.matched < done.pieces for done in self._rounds)
        return min(matched / max(1, matched + wrong), self._highest)

    def next(self, most: int) -> int:
        if not self._rounds:
            return 1
        last, rate = self._rounds[-1], self.rate

        def worth(pieces: int) -> float:
            return self._verified_per_second(pieces, rate, last.piece_time, last.search_time)

        return max(range(1, most + 1), key=worth)  # of equals the smallest


def expected(pieces: int, rate: float) -> float:
    """How many pieces a verification is expected to settle, the corrected one included:
    (1 - γ^s) / (1 - γ)."""
    return (1 - rate**pieces) / (1 - rate)


def synchronous_rate(pieces: int, rate: float, a: float, b: float) -> float:
    """Pieces settled in a second where a verification is waited for. a, b: seconds of a piece and
    of a verification."""
    return expected(pieces, rate) / (pieces * a + b)


def asynchronous_rate(pieces: int, rate: float, a: float, b: float) -> float:
    """The same where one more piece is written meanwhile: if all documents were right, it is the
    first of the next round, and the longer of the two counts."""
    right = rate**pieces
    hidden, lost = (pieces - 1) * a + max(a, b), pieces * a + b
    return expected(pieces, rate) / (right * hidden + (1 - right) * lost)

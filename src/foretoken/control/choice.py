"""What a choice of drafts is made from, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from foretoken.control.rates import History, Shape


@dataclass(slots=True)
class Row:
    """A sequence at a step. room: the most nodes that it may draft. histories: one for each
    drafter. copies: copier -> its draft, of those that were queried and have one. unread: drafter
    that computes -> the tokens that it has yet to read. length: tokens of its text. gains: copier
    -> [n] the tokens expected from the first n nodes of its draft (set by the controller)."""

    room: int
    histories: Seq[History]
    copies: Mapping[int, Shape] = field(default_factory=dict)
    unread: Mapping[int, int] = field(default_factory=dict)
    length: int = 0
    gains: dict[int, list[float]] = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """What one step drafts. takers: the drafter whose draft each sequence takes, or None; nodes:
    how many nodes of it. ms: the expected time of the step. trial: if the step is a trial, the
    tokens a millisecond that the best known step would yield, else 0. due: whether a trial was
    considered. saved: milliseconds that each copier's draft is expected to save beyond the other
    copiers'."""

    takers: list[int | None]
    nodes: list[int]
    ms: float
    trial: float = 0.0
    due: bool = False
    saved: dict[int, float] = field(default_factory=dict)

    def rows(self) -> dict[int, list[int]]:
        """The sequences that take a draft, by drafter."""
        rows: dict[int, list[int]] = {}
        for row, taker in enumerate(self.takers):
            if taker is not None:
                rows.setdefault(taker, []).append(row)
        return rows

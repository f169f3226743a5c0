"""Masks that are filled while the target's pass runs: they follow from the draft alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from threading import Thread
from typing import Protocol

from foretoken.errors import caught
from foretoken.grammar.constraint import Constraint

Paths = Callable[[], list[list[list[int]]]]
"""Host lists [sequence][place] of the draft tokens that lead to each place."""


class Text(Protocol):
    """A sequence, as far as it is read here."""

    @property
    def constraint(self) -> Constraint | None:
        """None without a grammar."""
        ...

    @property
    def output(self) -> list[int]:
        """A copy of what it has written."""
        ...


@contextmanager
def filled_ahead(texts: Seq[Text], paths: Paths, counts: Seq[int]) -> Iterator[Paths]:
    """The paths to each sequence's places, the root and as many nodes as are counted. Meanwhile a
    thread works out those of the sequences that have a grammar; leaving waits for it."""
    if all(text.constraint is None for text in texts):  # then no output is copied
        yield lambda: _counted(paths, counts)
        return
    known, given = _counted(paths, counts), [(text.constraint, text.output) for text in texts]

    def fill() -> None:
        try:
            for (constraint, output), own in zip(given, known, strict=True):
                if constraint is not None:
                    constraint.places(output, own)
        except caught():
            return  # what is wrong is found again where the mask is read, and told there

    filling = Thread(target=fill, name="foretoken-masks")
    filling.start()
    try:
        yield lambda: known
    finally:
        filling.join()


def _counted(paths: Paths, counts: Seq[int]) -> list[list[list[int]]]:
    """The paths without those to padding."""
    return [own[: count + 1] for own, count in zip(paths(), counts, strict=True)]

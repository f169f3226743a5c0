"""Masks that are filled while the target's pass runs: they follow from the draft alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from threading import Thread

from foretoken.errors import caught
from foretoken.grammar.constraint import Constraint

Paths = Callable[[], list[list[list[int]]]]
"""Host lists [sequence][place] of the draft tokens that lead to each place."""


@contextmanager
def filled_ahead(texts: Seq[tuple[Constraint | None, list[int]]], paths: Paths) -> Iterator[Paths]:
    """The paths. Meanwhile a thread works out the places of the sequences that have a grammar;
    leaving waits for it. texts: each sequence's grammar and output."""
    if all(constraint is None for constraint, _ in texts):
        yield paths
        return
    known = paths()

    def fill() -> None:
        try:
            for (constraint, output), own in zip(texts, known, strict=True):
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

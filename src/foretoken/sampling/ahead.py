"""Masks that are filled while the target's pass runs: they follow from the draft alone."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from threading import Thread

from foretoken.errors import caught
from foretoken.sampling.edits import Contexts
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree


@contextmanager
def filled_ahead(sequences: Seq[Sequence], trees: DraftTree) -> Iterator[Contexts]:
    """What `fold` takes as contexts. Meanwhile a thread works out the places of the sequences that
    have a grammar; leaving waits for it."""
    constrained = [(s.constraint, s.output, row) for row, s in enumerate(sequences)]
    known = [(c, output, row) for c, output, row in constrained if c is not None]
    if not known:
        yield trees.contexts
        return
    paths = trees.contexts()

    def fill() -> None:
        try:
            for constraint, output, row in known:
                constraint.places(output, paths[row])
        except caught():
            return  # what is wrong is found again where the mask is read, and told there

    filling = Thread(target=fill, name="foretoken-masks")
    filling.start()
    try:
        yield lambda: paths
    finally:
        filling.join()

"""Views of sequences in which tokens have ranks.

At temperature 0 `fold` puts all mass on one token, which says nothing of the next likeliest ones.
"""

from __future__ import annotations

from dataclasses import replace

from foretoken.sampling.params import SamplingParams
from foretoken.sampling.sequence import Sequence

_VIEWED = object()  # where a sequence's state has its parameters, and those of the view


def ranking(sequence: Sequence) -> Sequence:
    """The sequence at temperature 1, with no token cut off. It shares what the sequence keeps; its
    parameters are made once, since making them checks all that a request brought along."""
    known: tuple[SamplingParams, SamplingParams] | None = sequence.state.get(_VIEWED)
    if known is None or known[0] is not sequence.params:
        given = sequence.params
        uncut = replace(given, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        known = sequence.state[_VIEWED] = given, uncut
    return replace(sequence, params=known[1], grammar=sequence.constraint)

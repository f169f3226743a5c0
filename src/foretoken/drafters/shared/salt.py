"""Which requests a drafter may learn from."""

from __future__ import annotations

from foretoken.sampling.sequence import Sequence


def shares(sequence: Sequence) -> bool:
    """Whether what a request writes may be drafted for others, and what they wrote for it. One with
    a `cache_salt` is kept apart: drafts may be told (`return_drafts`), and else their speed is."""
    return sequence.params.cache_salt is None

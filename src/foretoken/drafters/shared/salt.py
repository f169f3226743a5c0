"""Which requests a drafter may learn from."""

from __future__ import annotations

from foretoken.sampling.sequence import Sequence


def shares(sequence: Sequence) -> bool:
    """Whether what a request writes may be drafted for others, and what they wrote for it. One with
    a `cache_salt` is kept apart: drafts, and the speed that they give, show what others wrote."""
    return sequence.params.cache_salt is None

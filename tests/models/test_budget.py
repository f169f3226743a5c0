"""What caches may fill, counted over all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from foretoken.models.budget import CacheBudget


@dataclass(eq=False)
class Cache:
    """`each` bytes a token, after a first of `ahead`."""

    each: int
    ahead: int = 0
    written: int = 0
    lazy: bool = True
    left: list[int] = field(default_factory=list)  # bytes of what is warm, the oldest first

    @property
    def warm(self) -> int:
        return sum(self.left)

    def forget_oldest(self) -> bool:
        return bool(self.left) and self.left.pop(0) > 0

    def forget(self) -> None:
        self.left.clear()

    def needs(self, tokens: int) -> int:
        return self.ahead + self.each * tokens


def test_all_caches_count() -> None:
    """Until they are gone; those of another tokenizer by their own longer texts."""
    budget, target, draft = CacheBudget(100), Cache(3, 1, written=7), Cache(2, written=5)
    budget.join(target)
    budget.join(draft)
    assert budget.needs(4) == 13 + 8 and budget.written == 12
    own, foreign = CacheBudget(longer=2), Cache(5)
    own.join(foreign)
    budget.join(own)
    assert budget.needs(4) == 21 + 40
    del own, draft
    assert budget.needs(4) == 13 and budget.written == 7


def test_how_many_fit() -> None:
    """In turn: a short text behind one that waits waits too."""
    budget, cache = CacheBudget(100), Cache(10)
    assert budget.fitting([5, 5]) == 2  # nothing is stored
    budget.join(cache)
    budget.reserve(1, 2)
    assert [budget.fitting(texts) for texts in ([], [8], [9], [4, 4], [4, 5, 1])] == [0, 1, 0, 2, 1]
    budget.limit = None
    assert budget.fitting([10**9] * 3) == 3


def test_reserving() -> None:
    """A text fits beside those that have reserved, or not; what left is free again."""
    budget, cache = CacheBudget(100), Cache(10)
    budget.join(cache)
    budget.reserve(1, 4)
    budget.reserve(2, 3)
    assert budget.reserved == 70 and budget.fits(3) and not budget.fits(4)
    assert budget.holds(10) and not budget.holds(11)
    cache.written = 33
    budget.free(1)
    budget.free(7)  # which reserved nothing
    assert budget.reserved == 30 and budget.fits(7) and budget.peak == 33
    cache.written = 4
    budget.reset_peak()
    budget.free(2)
    assert (budget.reserved, budget.peak) == (0, 4)


def test_a_text_becomes_longer_than_was_reserved() -> None:
    """Where that much is free; what is warm gives way. One that reserved nothing isn't bounded."""
    budget, cache = CacheBudget(100), Cache(10, left=[20])
    budget.join(cache)
    budget.reserve(1, 4)
    budget.reserve(2, 3)
    assert [budget.stretch(1, tokens) for tokens in (2, 4, 8)] == [4, 4, 4]
    assert budget.reserved == 70 and budget.warm == 20
    assert budget.stretch(1, 7) == 7 and budget.reserved == 100 and not budget.warm
    assert budget.stretch(2, 4) == 3 and budget.stretch(3, 1000) == 1000
    budget.free(1)
    assert budget.stretch(2, 10) == 10 and budget.reserved == 100
    budget.limit = None
    assert budget.stretch(2, 10**9) == 10**9
    budget.free(2)
    assert budget.reserved == 0


@pytest.mark.parametrize(("limit", "longest"), [(None, 64), (5, 0), (49, 4), (50, 5), (10**9, 64)])
def test_the_longest_text(limit: int | None, longest: int) -> None:
    budget, cache = CacheBudget(limit), Cache(10)
    budget.join(cache)
    assert budget.longest(64) == longest
    assert budget.lazy
    cache.lazy = False
    assert not budget.lazy


def test_what_is_warm_makes_room() -> None:
    """Only as far as it stands in the way; a text fits beside whatever is warm."""
    budget, target, draft = CacheBudget(100), Cache(10), Cache(0)
    own, foreign = CacheBudget(longer=2), Cache(0, left=[1, 1])
    own.join(foreign)
    for cache in (target, draft, own):
        budget.join(cache)
    target.left, draft.left = [20, 20, 10], [5]
    assert budget.warm == 57 and budget.fits(10)
    budget.reserve(1, 3)
    budget.make_room()
    assert (target.left, draft.left, foreign.left) == ([20, 20, 10], [5], [1, 1])
    budget.reserve(2, 3)
    budget.make_room()
    assert (target.left, draft.left, foreign.left) == ([20, 10], [], [1])
    budget.reserve(3, 9)  # which nobody would be given
    budget.make_room()
    assert budget.warm == 0
    target.left, foreign.left = [5], [3]
    budget.forget()
    assert budget.warm == 0
    budget.limit = None
    target.left = [10**9]
    budget.make_room()
    assert target.left


def test_the_most_that_was_filled() -> None:
    """As each sequence leaves, until it is counted anew."""
    budget, cache = CacheBudget(100), Cache(1, written=40)
    budget.join(cache)
    for owner, written in enumerate((40, 70, 20)):
        cache.written = written
        budget.reserve(owner, 1)
        budget.free(owner)
    assert budget.peak == 70
    budget.reset_peak()
    assert budget.peak == 20

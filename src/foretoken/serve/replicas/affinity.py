"""Which replica a prompt goes to: the one that has read most of it, unless too many wait there."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Seq
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

LEAST_MATCH = 0.1  # share of a prompt below which it counts as unknown; Ray's number
BLOCK = 16  # characters that are compared as one
MOST = 400_000  # characters remembered of each replica; Ray's number


class Affinity(Generic[Key]):
    """Remembers what each replica has read and how many requests it has.

    The rule is that of Ray's `PrefixCacheAffinityRouter` (Ray Serve LLM): where loads are alike, a
    prompt goes to the replica that has read the longest beginning of it; one of which less than a
    tenth is known goes to the replica that has read least; where loads differ by more than
    `imbalance` requests, to the less loaded of two at random. Ray's `imbalance` is infinite by
    default, and one system prompt would then bring all requests to one replica.
    """

    def __init__(self, imbalance: int) -> None:
        self._imbalance = imbalance
        self._read: dict[Key, OrderedDict[int, None]] = {}
        self._ongoing: Counter[Key] = Counter()

    def order(self, replicas: Seq[Key], text: str) -> list[Key]:
        """The replicas, the best first; at least one must be given."""
        loads = {replica: self._ongoing[replica] for replica in replicas}
        by_load = sorted(random.sample(replicas, len(replicas)), key=loads.__getitem__)
        unlike = loads[by_load[-1]] - loads[by_load[0]] > self._imbalance
        if not text or unlike:
            pair = sorted(random.sample(replicas, min(2, len(replicas))), key=loads.__getitem__)
            return _first(pair[0], by_load)
        known = {replica: self._known(replica, text) for replica in by_load}
        best = max(by_load, key=known.__getitem__)
        if known[best] * BLOCK < LEAST_MATCH * len(text):
            best = min(by_load, key=lambda replica: len(self._read.get(replica, ())))
        return _first(best, by_load)

    def begun(self, replica: Key, text: str) -> None:
        """A replica has taken a prompt."""
        self._ongoing[replica] += 1
        read = self._read.setdefault(replica, OrderedDict())
        for block in _blocks(text):
            read[block] = None
            read.move_to_end(block)
        while len(read) > MOST // BLOCK:
            read.popitem(last=False)

    def ended(self, replica: Key) -> None:
        """A replica has answered, or nobody waits for it any more."""
        self._ongoing[replica] = max(0, self._ongoing[replica] - 1)

    def keep(self, replicas: Iterable[Key]) -> None:
        """Forget all others: they have gone, and their caches with them."""
        here = set(replicas)
        self._read = {key: read for key, read in self._read.items() if key in here}
        self._ongoing = Counter({key: n for key, n in self._ongoing.items() if key in here})

    def _known(self, replica: Key, text: str) -> int:
        """How many of a text's first blocks a replica has read."""
        read = self._read.get(replica) or OrderedDict[int, None]()
        blocks = _blocks(text)
        return next((place for place, block in enumerate(blocks) if block not in read), len(blocks))


def _first(best: Key, others: Seq[Key]) -> list[Key]:
    return [best, *(other for other in others if other != best)]


def _blocks(text: str) -> list[int]:
    """A number for each whole block, which stands for all before it too."""
    numbers, number = [], 0
    for end in range(BLOCK, len(text) + 1, BLOCK):
        number = hash((number, text[end - BLOCK : end]))
        numbers.append(number)
    return numbers

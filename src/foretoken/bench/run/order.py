"""Which method answers first: of each task and setting another one each time."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from foretoken.bench.plan import Unit, seed_of

Kind = tuple[str, int, float, int, int]
"""A unit's task, its first prompt's turns, temperature and batch size, and a turn."""


class Order:
    """Rotates the methods, so that a machine whose speed drifts affects all alike.

    Units of a kind are counted by themselves: where as many tasks as methods take turns, one count
    of all would have each task begin with the same method every time. A count begins at a number
    that the first unit's prompt decides, so that a run that is resumed, and a suite with a prompt
    or two of each task, begin with one method as often as with another.
    """

    def __init__(self) -> None:
        self._next: dict[Kind, int] = {}

    def of(self, labels: Seq[str], unit: Unit, turn: int) -> list[str]:
        """The labels in the order in which this unit's turn is served now."""
        first = unit.prompts[0]
        kind = first.task, len(first.turns), unit.temperature, unit.batch_size, turn
        number = self._next.get(kind)
        if number is None:
            number = seed_of(0, first.id, 0)
        self._next[kind] = number + 1
        at = number % len(labels)
        return [*labels[at:], *labels[:at]]

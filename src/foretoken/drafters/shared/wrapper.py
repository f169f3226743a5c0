"""The base of drafters that are made of other drafters: every call goes to all parts."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from foretoken.access import Access, Wants
from foretoken.errors import ForetokenError
from foretoken.protocols import BaseDrafter, Drafter, Shared
from foretoken.sampling.sequence import Sequence


@dataclass(eq=False)
class Wrapper(BaseDrafter):
    """A drafter made of others. drafters: its parts; least: the fewest that it takes."""

    drafters: Seq[Drafter] = ()

    least: ClassVar[int] = 2

    @property
    def parts(self) -> Seq[Drafter]:
        return self.drafters

    def __post_init__(self) -> None:
        if len(self.drafters) < self.least:
            raise ForetokenError("Name at least two drafters, e.g. 'pld+sps' or 'pld|sps'.")
        parts = self.drafters
        levels = sorted({level for part in parts for level in part.wants.levels})
        self.wants = Wants("".join(levels), self._hidden(), self._last())
        self.kinds = frozenset(kind for part in parts for kind in part.kinds)
        self.trees = any(part.trees for part in parts)
        self.coupled = any(part.coupled for part in parts)

    @property
    def nodes(self) -> int:
        """One part's draft at a time."""
        return max(part.nodes for part in self.drafters)

    def bind(self, access: Access) -> None:
        for part in self.drafters:
            part.bind(access)
        self.wants = replace(self.wants, hidden=self._hidden(), last=self._last())
        self._device = access.device
        learned = [part.shared for part in self.drafters if part.shared is not None]
        self.shared = _SharedByParts(learned) if learned else None

    def _hidden(self) -> tuple[int, ...]:
        """The layers whose states any part reads; a part may add to its layers in `bind`."""
        return tuple(sorted({layer for part in self.drafters for layer in part.wants.hidden}))

    def _last(self) -> int | None:
        """Of how many of a prompt's tokens any part reads states."""
        lasts = [part.wants.last for part in self.drafters if part.wants.hidden]
        known = [last for last in lasts if last is not None]
        return max(known, default=None) if len(known) == len(lasts) else None

    def begin(self, sequence: Sequence) -> None:
        for part in self.drafters:
            part.begin(sequence)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        for part in self.drafters:
            part.fork(sequence, copy)

    def end(self, sequences: Seq[Sequence]) -> None:
        with ExitStack() as all_parts:  # the others too, where one raises
            for part in reversed(self.drafters):
                all_parts.callback(part.end, sequences)


class _SharedByParts:
    """What several parts have learned. Each part has its own file: the path and a number."""

    def __init__(self, parts: Seq[Shared]) -> None:
        self._parts = parts

    def reset(self) -> None:
        for part in self._parts:
            part.reset()

    def save(self, path: str | Path) -> None:
        for number, part in enumerate(self._parts):
            part.save(f"{path}.{number}")

    def load(self, path: str | Path) -> None:
        for number, part in enumerate(self._parts):
            part.load(f"{path}.{number}")

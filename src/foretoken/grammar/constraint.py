"""Which tokens may follow a text and each path of a draft under it, by a grammar.

Every place of a pass has the mask of its own path, the bonus token's included. A draft that the
grammar forbids is not dropped: its token has probability 0 where it was proposed, so any exact rule
rejects it, and what hangs under it can't be reached. Such places are left as they are instead of
masked to nothing.

A matcher is moved from text to text, by going back to where they part. So it can't be out of step
with a sequence, whatever was drafted, accepted, rejected or started again.

Legend: M places, V vocabulary, W = ceil(V / 32) words of a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretoken.errors import ForetokenError, caught, described

Words = NDArray[np.int32]
"""[W] a mask: bit t % 32 of word t // 32 tells whether token t may be written."""

Path = tuple[int, ...]


class Matcher(Protocol):
    """A grammar's state after some text. A backend implements it; ends of text are not its
    business."""

    def accept(self, token: int) -> bool:
        """Go on by a token; False, and nothing has changed, where the grammar has no place for it
        or it is an end-of-text token."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""

    def fill(self, words: Words) -> None:
        """Write the mask [W] of the tokens that may follow, without the ends of text. Raises
        `ForetokenError` where the grammar has become too complex."""

    @property
    def complete(self) -> bool:
        """Whether the text so far is a whole one."""

    def forced(self) -> list[int]:
        """The tokens of the text that must follow in any case, as the tokenizer cuts it."""


class Marker(Protocol):
    """Where a reasoning ends."""

    def after(self, text: Seq[int], seen: int) -> int | None:
        """The place after its first occurrence that ends after the first `seen` tokens."""


@dataclass(frozen=True)
class Ids:
    """Certain tokens, one after the other."""

    ids: tuple[int, ...]

    def after(self, text: Seq[int], seen: int) -> int | None:
        start = max(0, seen - len(self.ids) + 1)
        while True:
            try:
                start = text.index(self.ids[0], start)
            except ValueError:
                return None
            if tuple(text[start : start + len(self.ids)]) == self.ids:
                return start + len(self.ids)
            start += 1


@dataclass(frozen=True)
class CompiledGrammar:
    """A grammar that is ready to be used.

    name: what it is, for errors. vocab_size: of the target. start: a new matcher at the beginning
    of a text, cheap (a fork of one that was made before). reasoning_end: after what it holds, None
    where it holds from the start."""

    name: str
    vocab_size: int
    start: Callable[[], Matcher]
    reasoning_end: Marker | None = None


class Place(NamedTuple):
    """What holds after a path. words: the mask, or None where everything may follow: the grammar
    doesn't hold yet, or the place can't be reached. finished: the text is whole and can't go on.
    error: why there is no mask where there should be one."""

    words: Words | None = None
    finished: bool = False
    error: ForetokenError | None = None


_FREE = Place()


class Constraint:
    """The grammar of one sample."""

    def __init__(self, grammar: CompiledGrammar, end_ids: frozenset[int]) -> None:
        """end_ids: the tokens that end a text, which may follow where it is whole."""
        self._grammar, self._ends = grammar, end_ids
        self._matcher = grammar.start()
        self._matched: list[int] = []  # where the matcher is
        self._output: list[int] = []
        self._began: int | None = None  # after which of the output's tokens it holds
        self._over = False  # whether the output has an end of text in it
        self._there = False  # whether the matcher is known to be at the output, or below it
        self._known: dict[Path, Place] = {}  # below the output

    def places(self, output: list[int], paths: Seq[Seq[int]]) -> list[Place]:
        """What may follow the output tokens with each path."""
        self._go_to(output)
        unique = {tuple(path) for path in paths}
        for path in sorted(unique - self._known.keys()):  # in this order the matcher moves least
            try:
                self._known[path] = self._place(path)
            except caught() as error:  # after which a matcher may be useless
                self._matcher, self._matched, self._there = self._grammar.start(), [], False
                self._known[path] = Place(error=described("The grammar", error))
        return [self._known[tuple(path)] for path in paths]

    def finished(self, output: list[int]) -> bool:
        """Whether the text is whole, and no token of the vocabulary may go on with it."""
        return self.places(output, [()])[0].finished

    def forced(self, output: list[int]) -> list[int]:
        """The tokens that must follow the output in any case."""
        self._go_to(output)
        text = self._constrained(())
        return [] if text is None or not self._match(text, ()) else self._matcher.forced()

    def _go_to(self, output: list[int]) -> None:
        """Keep what is known of drafts that the output now begins with."""
        size = len(self._output)
        if output == self._output:
            return
        follows = output[:size] == self._output
        began, seen = (self._began, size) if follows else (None, 0)
        if (marker := self._grammar.reasoning_end) is not None and began is None:
            began = marker.after(output, seen)  # before anything changes, as it may raise
        added = tuple(output[size:])
        self._over = (follows and self._over) or not self._ends.isdisjoint(
            added if follows else output
        )
        self._there, known = False, self._known if follows else {}
        self._known = {
            path[len(added) :]: place
            for path, place in known.items()
            if path[: len(added)] == added
        }
        self._began, self._output = began, list(output)

    def _place(self, path: Path) -> Place:
        text = self._constrained(path)
        if text is None:
            return _FREE
        if not self._match(text, path):
            if len(self._matched) < len(text) - len(path):
                raise ForetokenError(
                    f"The text is none that {self._grammar.name} allows: something else changed "
                    "what may be written; look at the logits processors."
                )
            return _FREE
        words = np.zeros(-(-self._grammar.vocab_size // 32), np.int32)
        self._matcher.fill(words)
        complete = self._matcher.complete
        finished = complete and not words.any()
        if finished and not self._ends:
            if not self._output and not path:
                raise ForetokenError(
                    f"{self._grammar.name} allows the empty text only, and no token ends a text "
                    "here; use a grammar that something can be written by."
                )
            return Place(None, True)
        if complete:
            for token in self._ends:
                words.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
        if not words.any():
            raise ForetokenError(
                f"{self._grammar.name} allows no token of the vocabulary after this text; use a "
                "grammar that the model's tokens can write."
            )
        return Place(words, finished)

    def _constrained(self, path: Path) -> list[int] | None:
        """The part of the output with a path that the grammar speaks of; None where it doesn't
        hold yet or any more."""
        if self._over or not self._ends.isdisjoint(path):
            return None
        text = [*self._output, *path]
        marker, start = self._grammar.reasoning_end, self._began or 0
        if marker is not None and self._began is None:
            found = marker.after(text, len(self._output))
            if found is None:
                return None
            start = found
        return text[start:]

    def _match(self, text: list[int], path: Path) -> bool:
        """Bring the matcher to a text that ends with a path, or as far as the grammar allows it.
        The output before the path is compared once, not for each path."""
        matched, size = self._matched, max(0, len(text) - len(path))
        same = size if self._there or matched[:size] == text[:size] else 0  # which is fast
        while same < min(len(matched), len(text)) and matched[same] == text[same]:
            same += 1
        same = min(same, len(matched), len(text))
        if same < len(matched):
            self._matcher.rollback(len(matched) - same)
            del matched[same:]
        for token in text[same:]:
            if not self._matcher.accept(token):
                break
            matched.append(token)
        self._there = len(matched) >= size
        return len(matched) == len(text)


def mask(
    logits: Tensor,
    masked: Tensor,
    constraint: Constraint,
    output: list[int],
    paths: list[list[int]],
) -> dict[int, ForetokenError]:
    """Write logits [M, V] to `masked`, with −∞ for what the grammar forbids after each path. Places
    where nothing can follow become NaN; returns why, by place."""
    wrong: dict[int, ForetokenError] = {}
    for m, place in enumerate(constraint.places(output, paths)):
        if place.error is not None:
            masked[m], wrong[m] = torch.nan, place.error
        elif place.words is None:
            masked[m] = logits[m]
        else:
            torch.minimum(logits[m], _bounds(place.words, logits[m]), out=masked[m])
    return wrong


def _bounds(words: Words, row: Tensor) -> Tensor:
    """[V] ∞ for what a mask allows, else −∞. A minimum with them has no branches: filling by a mask
    of truth values takes up to ten times as long where what is allowed lies scattered."""
    if row.device.type != "cpu":
        bits = torch.from_numpy(words).to(row.device)[:, None] >> torch.arange(
            32, device=row.device
        )
        allowed = (bits & 1).bool().flatten()[: row.shape[-1]]
        return torch.where(allowed, torch.inf, -torch.inf).to(row.dtype)
    bounds = np.empty((words.nbytes, 8), _bytes(row.dtype).dtype)
    _bytes(row.dtype).take(words.view(np.uint8), axis=0, out=bounds, mode="clip")
    return torch.from_numpy(bounds).flatten()[: row.shape[-1]]


@cache
def _bytes(dtype: torch.dtype) -> NDArray[Any]:
    """[256, 8] the bounds of eight tokens by the byte of their bits."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    bounds = np.where(bits, np.inf, -np.inf)
    return torch.from_numpy(bounds).to(dtype).numpy()

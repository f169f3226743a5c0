"""Prompt lookup: copy what followed the last n tokens the last time they occurred.

Source: Saxena 2023 (prompt lookup decoding); Yang et al. 2023 (LLMA), section 3.2. It searches the
request's own text, its `references` (SamplingParams) and, with `max_cached_tokens`, the outputs of
earlier requests, which is LLMA's cache-assisted setting. The longest n-gram wins, then the text
over the references over earlier outputs, then the most recent occurrence. Departures from the
reference codes, which take the oldest match (and for prompt lookup need a full continuation):
recent text resembles the next tokens more, and a short continuation is still a draft, which in a
text that repeats itself goes on with itself. The request's texts are searched as they are; earlier
outputs, which may be many, have a table of n-grams.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain

import torch

from foretoken.access import Access, Wants
from foretoken.drafters.shared.salt import shares
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.lookup.earlier_outputs import EarlierTexts
from foretoken.lookup.longest_match import latest_match, repeated, unmarked
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, chains


@dataclass(eq=False)
class PromptLookup(BaseDrafter):
    """num_speculative_tokens: most tokens copied; prompt_lookup_max/min: longest and shortest
    n-gram looked up; max_cached_tokens: how many tokens of earlier requests' outputs are stored to
    copy from, about 0.2 KB a token and n-gram length."""

    num_speculative_tokens: int = 10
    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1
    max_cached_tokens: int = 0

    wants = Wants("a")
    follows = True

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ForetokenError("num_speculative_tokens must be at least 1.")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ForetokenError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max is "
                f"{self.prompt_lookup_max}; need 1 <= min <= max."
            )
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        check_range(1, MOST_NODES, prompt_lookup_max=self.prompt_lookup_max)
        check_range(0, math.inf, max_cached_tokens=self.max_cached_tokens)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device
        self._sizes = range(self.prompt_lookup_max, self.prompt_lookup_min - 1, -1)
        self.shared: EarlierTexts[_NGrams] | None = None
        if self.max_cached_tokens:
            self.shared = EarlierTexts(
                _NGrams(self._sizes), self.max_cached_tokens, access.vocab_size
            )

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        others = None if self.shared is None else self.shared.index
        drafts = [
            self._copy(
                sequence,
                min(self.num_speculative_tokens, budget),
                others if shares(sequence) else None,
            )
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        return chains(drafts, self._device)

    def _copy(self, sequence: Sequence, limit: int, others: _NGrams | None) -> list[int]:
        """The copy. others: the table of what others wrote, if there is one."""
        if limit < 1:
            return []
        text = self._own_text(sequence)
        found, start = latest_match(text, self.prompt_lookup_min, self.prompt_lookup_max)
        if others is not None:
            tail = sequence.tokens[-self.prompt_lookup_max :]
            for size in range(len(tail), max(found, self.prompt_lookup_min - 1), -1):
                if place := others.places.get(tuple(tail[-size:])):
                    text, start = place
                    return unmarked(text[start : start + limit].tolist())
        return unmarked(repeated(text, start, limit)) if found else []

    def _own_text(self, sequence: Sequence) -> array[int]:
        """The request's references, with a mark after each, and its text so far."""
        own: _Own | None = sequence.state.get(self)
        if own is None:
            marked = ([*text, -mark] for mark, text in enumerate(sequence.references, 1))
            own = sequence.state[self] = _Own(array("i", chain.from_iterable(marked)))
        new = sequence.tokens[own.read :]
        own.text.extend(new)
        own.read += len(new)
        return own.text

    def end(self, sequences: Seq[Sequence]) -> None:
        if self.shared is not None:
            for sequence in filter(shares, sequences):
                self.shared.add(sequence.output)


@dataclass(slots=True)
class _Own:
    """What a request keeps. text: see `_own_text`; read: how much of its tokens is in it."""

    text: array[int]
    read: int = 0


class _NGrams:
    """A table from n-grams to what followed them. places: n-gram -> (text, the place after its
    latest occurrence that something follows)."""

    __slots__ = ("_sizes", "places")

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self.places: dict[tuple[int, ...], tuple[array[int], int]] = {}

    def add(self, text: array[int], start: int, stop: int) -> None:
        """Add the n-grams that end just before each of these places of a text. Its last token is an
        end mark, which is not worth copying."""
        for end in range(max(1, start), min(stop, len(text) - 1)):
            place = text, end  # one for all sizes: Python's collector visits each
            for size in self._sizes:
                if size <= end:
                    self.places[tuple(text[end - size : end])] = place

    def drop(self, text: array[int], start: int, stop: int) -> None:
        """Undo `add`; n-grams that a later text also has stay."""
        for end in range(max(1, start), min(stop, len(text) - 1)):
            for size in self._sizes:
                gram = tuple(text[max(0, end - size) : end])
                if gram in self.places and self.places[gram][0] is text:
                    del self.places[gram]

    def clear(self) -> None:
        self.places.clear()

"""Prompt lookup: copy what followed the last n tokens the last time they occurred.

Source: Saxena 2023 (prompt lookup decoding); Yang et al. 2023 (LLMA), section 3.2. It searches the
request's own text, its `references` (SamplingParams) and, with `max_cached_tokens`, the outputs of
earlier requests, which is LLMA's cache-assisted setting. The longest n-gram wins, then the text
over the references over earlier outputs, then the most recent occurrence. Departures from the
reference codes, which take the oldest match (and for prompt lookup need a full continuation):
recent text resembles the next tokens more, and a short continuation is still a draft, which in a
text that repeats itself goes on with itself. Tables of n-grams grow with the texts, so a step costs
the new tokens and not the history.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access, Wants
from foretoken.drafters.shared.salt import shares
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.lookup.earlier_outputs import EarlierTexts
from foretoken.lookup.longest_match import repeated
from foretoken.protocols import BaseDrafter, Step
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
        others = [] if self.shared is None else [self.shared.index]
        drafts = [
            self._copy(
                sequence,
                min(self.num_speculative_tokens, budget),
                others if shares(sequence) else [],
            )
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        return chains(drafts, self._device)

    def _copy(self, sequence: Sequence, limit: int, others: list[_NGrams]) -> list[int]:
        """The copy. others: the table of what others wrote, if there is one."""
        if limit < 1:
            return []
        tables = [self._request_table(sequence), *others]
        tail = sequence.tokens[-self.prompt_lookup_max :]
        for size in self._sizes[-len(tail) :]:
            gram = tuple(tail[-size:])
            for table in tables:
                if gram in table.places:
                    text, start = table.places[gram]
                    if text is sequence.tokens:
                        return repeated(text, start, limit)
                    return [token for token in text[start : start + limit] if token >= 0]
        return []

    def _request_table(self, sequence: Sequence) -> _NGrams:
        """The table of the request's references and its text so far."""
        table: _NGrams | None = sequence.state.get(self)
        if table is None:
            table = sequence.state[self] = _NGrams(self._sizes)
            for text in sequence.references:
                table.read(text, 1, len(text))
        tokens = sequence.tokens
        table.read(tokens, table.done + 1, len(tokens))  # nothing follows the end itself yet
        table.done = max(table.done, len(tokens) - 1)
        return table

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for sequence in sequences:
            self._request_table(sequence)

    def end(self, sequences: Seq[Sequence]) -> None:
        if self.shared is not None:
            for sequence in filter(shares, sequences):
                self.shared.add(sequence.output)


class _NGrams:
    """A table from n-grams to what followed them. places: n-gram -> (text, the place after its
    latest occurrence that something follows)."""

    __slots__ = ("_sizes", "done", "places")

    def __init__(self, sizes: range) -> None:
        self._sizes = sizes
        self.places: dict[tuple[int, ...], tuple[Seq[int], int]] = {}
        self.done = 0  # how much of a growing text has been read

    def read(self, text: Seq[int], start: int, stop: int) -> None:
        """Add the n-grams that end just before each place of range(start, stop)."""
        for end in range(start, stop):
            for size in self._sizes:
                if size <= end:
                    self.places[tuple(text[end - size : end])] = text, end

    def add(self, text: array[int], start: int, stop: int) -> None:
        """Add these places of a text. Its last token is an end mark, which is not worth copying."""
        self.read(text, max(1, start), min(stop, len(text) - 1))

    def drop(self, text: array[int], start: int, stop: int) -> None:
        """Undo `add`; n-grams that a later text also has stay."""
        for end in range(max(1, start), min(stop, len(text) - 1)):
            for size in self._sizes:
                gram = tuple(text[max(0, end - size) : end])
                if gram in self.places and self.places[gram][0] is text:
                    del self.places[gram]

    def clear(self) -> None:
        self.places.clear()

"""Prompt lookup: copy what followed the last n tokens the last time they occurred.

Source: Saxena 2023 (prompt lookup decoding); Yang et al. 2023 (LLMA), section 3.2. The longest
n-gram wins, then the most recent occurrence. Departures from the reference code, which takes the
oldest match and needs a full continuation: later text resembles what comes next more, and a short
continuation is still a draft. A table of n-grams grows with the text, so a step costs the new
tokens and not the history.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.protocols import Access, BaseDrafter, Sequence, Wants
from foretoken.tree import DraftTree, chains


@dataclass(eq=False)
class PromptLookup(BaseDrafter):
    """num_speculative_tokens: most tokens copied; prompt_lookup_max/min: n-gram lengths tried."""

    num_speculative_tokens: int = 10
    prompt_lookup_max: int = 3
    prompt_lookup_min: int = 1

    wants = Wants("a")

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ForetokenError("num_speculative_tokens must be at least 1.")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise ForetokenError(
                f"prompt_lookup_min is {self.prompt_lookup_min} and prompt_lookup_max is "
                f"{self.prompt_lookup_max}; need 1 <= min <= max."
            )

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [
            self._copy(sequence, min(self.num_speculative_tokens, budget))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        return chains(drafts, self._device)

    def _copy(self, sequence: Sequence, limit: int) -> list[int]:
        if limit < 1:
            return []
        table = sequence.state.get(self)
        if table is None:
            table = sequence.state[self] = _Table(self.prompt_lookup_min, self.prompt_lookup_max)
        tokens = sequence.tokens
        start = table.find(tokens)
        return [] if start is None else tokens[start : start + limit]

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        copy.state.pop(self, None)  # a sample reads its own text


class _Table:
    """n-gram -> the position behind its latest occurrence that has a continuation."""

    __slots__ = ("_ends", "_read", "_sizes")

    def __init__(self, smallest: int, largest: int) -> None:
        self._sizes = range(largest, smallest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = 0

    def find(self, tokens: list[int]) -> int | None:
        """Where the longest known suffix of `tokens` went on, most recently."""
        length = len(tokens)
        for end in range(self._read + 1, length):  # the suffix itself has no continuation yet
            for size in self._sizes:
                if size <= end:
                    self._ends[tuple(tokens[end - size : end])] = end
        self._read = max(self._read, length - 1)
        for size in self._sizes:
            if size <= length:
                start = self._ends.get(tuple(tokens[length - size :]))
                if start is not None:
                    return start
        return None

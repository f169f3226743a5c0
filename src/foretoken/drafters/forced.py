"""Draft a given answer, whatever has been written: the most that copying could save.

Source: the forced mode of the code of Yang et al. 2023 (LLMA). The draft is the part of the
request's first reference (without one, of an encoder's source or of its prompt) that begins where
the output ends; nothing is searched for. Given the target's own answer, every token is accepted, so
its time is a lower bound for copying drafters with drafts of this length. Departure: that code
accepts the given tokens unchecked; here they are verified like any others, so the text is the
target's, whatever is given.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.errors.values import check_tokens
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, chains


@dataclass(eq=False)
class Forced(BaseDrafter):
    """num_speculative_tokens: tokens of the given answer that are drafted in a step."""

    num_speculative_tokens: int = 20

    wants = Wants("a")

    def __post_init__(self) -> None:
        check_tokens(self.num_speculative_tokens, MOST_NODES)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [self._next(s, budget) for s, budget in zip(sequences, budgets, strict=True)]
        return chains(drafts, self._device)

    def _next(self, sequence: Sequence, budget: int) -> list[int]:
        given: Seq[Seq[int]] = sequence.params.references  # type: ignore[assignment]
        answer = [*given, *sequence.references, sequence.tokens[: sequence.prompt_length]][0]
        done = len(sequence.tokens) - sequence.prompt_length
        return list(answer[done : done + min(budget, self.num_speculative_tokens)])

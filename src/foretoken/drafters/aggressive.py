"""Aggressive decoding: the input is the draft, for as long as the output follows it.

Source: Sun et al. 2021 (SAD), section 3.1 and Algorithm 1. At first the whole input is drafted. At
a bifurcation the target's token is kept, and decoding continues token by token until an end of the
output occurs exactly once in the input; then the text after it is drafted. The input is the
request's `references` (SamplingParams), or its prompt where it has none. The paper's shallow
decoder is a property of the model. Departure: a draft ends where the engine's budget for a pass
does.

The longest end of the output that occurs in the input decides: if any end occurs once, it does.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.errors.values import check_tokens
from foretoken.lookup.suffix_automaton import START, Match, StaticAutomaton
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, chains


@dataclass(eq=False)
class Aggressive(BaseDrafter):
    """num_speculative_tokens: most tokens of what is left that are drafted in a step."""

    num_speculative_tokens: int = 64

    wants = Wants("a")
    follows = True

    def __post_init__(self) -> None:
        check_tokens(self.num_speculative_tokens, MOST_NODES)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [
            self._reader(sequence).draft(min(budget, self.num_speculative_tokens))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        return chains(drafts, self._device)

    def _reader(self, sequence: Sequence) -> _Reader:
        reader: _Reader | None = sequence.state.get(self)
        if reader is None:
            texts = sequence.references or [sequence.tokens[: sequence.prompt_length]]
            reader = sequence.state[self] = _Reader(StaticAutomaton.of(texts))
        reader.follow(sequence.tokens, sequence.prompt_length)
        return reader

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for sequence in sequences:
            self._reader(sequence)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        copy.state[self] = _Reader(self._reader(sequence).input)


class _Reader:
    """Follows the output through the input. match: its longest end that occurs there."""

    __slots__ = ("_done", "input", "match")

    def __init__(self, automaton: StaticAutomaton) -> None:
        self.input = automaton
        self.match: Match = START
        self._done = 0  # tokens of the output that have been followed

    def follow(self, tokens: list[int], prompt_length: int) -> None:
        for at in range(prompt_length + self._done, len(tokens)):
            self.match = self.input.step(self.match, tokens[at])
        self._done = len(tokens) - prompt_length

    def draft(self, most: int) -> list[int]:
        if not self._done:
            return self.input.after(0, most)
        if self.input.count(self.match) != 1:
            return []
        return self.input.after(self.input.first(self.match), most)

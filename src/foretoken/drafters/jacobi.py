"""Jacobi decoding: guess all of the next tokens, let the target correct all of them at once.

Source: Santilli et al. 2023 (parallel decoding), algorithms 1 to 3. The target's most likely token
after every guess becomes the next guess for that place, whether the guess before it was right or
not; what is right from the start of the text on is accepted. With `block_size`, no guess goes past
the end of its block, and the next block begins when all of this one is fixed (Gauss-Seidel between
blocks, Jacobi within). The hybrid algorithm stops where the text ends, which every method does
here, so it is the same drafter. Departures: the whole answer is not iterated on at once, but the
next `num_speculative_tokens` places; new places start with the tokens of the prompt (an
encoder–decoder's source) in turn, where the paper has the padding token.

When sampling, a guess is the likeliest token of the distribution that is sampled from, so it does
not depend on the random draw.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range, check_tokens
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, chains


@dataclass(eq=False)
class Jacobi(BaseDrafter):
    """num_speculative_tokens: places guessed ahead; block_size: tokens of a block, None for a
    window that moves with the text."""

    num_speculative_tokens: int = 16
    block_size: int | None = None

    wants = Wants("a")

    def __post_init__(self) -> None:
        check_tokens(self.num_speculative_tokens, MOST_NODES)
        if self.block_size is not None and self.block_size < 2:
            raise ForetokenError(
                f"block_size is {self.block_size}; it must be at least 2, or None for no blocks."
            )
        check_range(1, MOST_NODES, block_size=self.block_size)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [
            self._guesses(sequence)[:budget]
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        for sequence, guesses in zip(sequences, drafts, strict=True):
            sequence.state[self] = guesses
        return chains(drafts, self._device)

    def _guesses(self, sequence: Sequence) -> list[int]:
        """The guesses for the next places, then the prompt's tokens for those after."""
        guesses: list[int] = sequence.state.get(self, [])
        done = len(sequence.tokens) - sequence.prompt_length
        prompt = sequence.source or sequence.tokens
        size = len(sequence.source) or sequence.prompt_length
        first = [prompt[i % size] for i in range(done, done + self._ahead(done))]
        return [*guesses, *first[len(guesses) :]][: len(first)]

    def _ahead(self, done: int) -> int:
        """How many places are guessed after `done` tokens of output; a pass brings one more."""
        if self.block_size is None:
            return self.num_speculative_tokens
        return min(self.num_speculative_tokens, self.block_size - done % self.block_size - 1)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        """After each guess that the text hasn't reached, the target's prediction is the next guess,
        wherever in the step's tree the guesses stand."""
        found = self._rejected(sequences, steps)
        predicted = steps[0].scores.best.tolist() if any(found) else []  # [B][S]
        for sequence, step, slots in zip(sequences, steps, found, strict=True):
            sequence.state[self] = [predicted[step.row][slot] for slot in slots]

    def _rejected(self, sequences: Seq[Sequence], steps: Seq[Step]) -> list[list[int]]:
        """The slots of each sequence's guesses for places that its text hasn't reached."""
        if not steps or not steps[0].tokens:
            return [[] for _ in sequences]  # prefill brings no scores
        tree = steps[0].tree
        tokens, parents = tree.tokens.tolist(), tree.parent_slots.tolist()  # [B][N]
        found = []
        for sequence, step in zip(sequences, steps, strict=True):
            count = tree.counts[step.row]
            places = zip(parents[step.row][:count], tokens[step.row][:count], strict=True)
            slots = _slots(places, sequence.state.get(self, []))
            found.append(slots[len(step.tokens) - 1 :])
        return found


def _slots(places: Iterable[tuple[int, int]], guesses: Seq[int]) -> list[int]:
    """The slots of the guesses, one below the other, as far as a tree has them; others may stand
    beside them. places: of each node its parent's slot and its token."""
    below: dict[tuple[int, int], list[int]] = defaultdict(list)
    for slot, place in enumerate(places, 1):
        below[place].append(slot)
    slots, at = [], [0]
    for guess in guesses:
        at = [slot for parent in at for slot in below.get((parent, guess), ())]
        if not at:
            break
        slots.append(at[0])
    return slots

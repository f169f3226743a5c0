"""SAM-Decoding: a suffix automaton finds the longest end of the text that was seen before.

Source: Hu et al. 2025 (SAM-Decoding), sections 3.2 and 3.3. The dynamic automaton reads the
request's `references` (SamplingParams), prompt and output; what followed the first occurrence is
drafted as a chain, which in a text that repeats itself goes on with itself. The static one
(`corpus`) holds whole texts; its draft is the tree of the likeliest continuations by count. It is
used where its match is longer by more than `static_bias` tokens. A draft has `draft_factor` nodes
for each token of the match. Without an auxiliary drafter there is no least match length; falling
back to one is composition. Departure: where too few tokens follow the first occurrence, their code
looks for a shorter suffix.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path

import torch

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_range
from foretoken.lookup.suffix_automaton import START, Match, StaticAutomaton, SuffixAutomaton
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.best_first import best_first
from foretoken.trees.from_lists import from_parents


@dataclass(eq=False)
class Sam(BaseDrafter):
    """num_speculative_tokens: most nodes; draft_factor: nodes for each matched token; corpus: texts
    as token ids, a StaticAutomaton, or the file of one; static_bias: tokens that a match in the
    corpus counts less; max_children: of a node in the corpus's trees."""

    num_speculative_tokens: int = 40
    draft_factor: float = 4.0
    corpus: StaticAutomaton | Seq[Seq[int]] | str | Path | None = None
    static_bias: int = 5
    max_children: int = 8

    wants = Wants("a")
    follows = True

    def __post_init__(self) -> None:
        if min(self.num_speculative_tokens, self.max_children) < 1 or self.draft_factor <= 0:
            raise ForetokenError(
                "num_speculative_tokens and max_children must be at least 1 and draft_factor "
                "above 0."
            )
        if self.corpus is not None:
            self.wants, self.trees = Wants("ab"), True
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device
        self._corpus = _automaton(self.corpus, access.vocab_size)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [
            self._guess(self._reader(sequence), min(self.num_speculative_tokens, budget))
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        tokens, parents = [draft[0] for draft in drafts], [draft[1] for draft in drafts]
        return from_parents(tokens, parents, self._device)

    def _guess(self, reader: _Reader, most: int) -> tuple[list[int], list[int]]:
        """Tokens, and the slots of their parents."""
        length, start = reader.automaton.repeat
        static = reader.match[1] - self.static_bias
        nodes = max(0, int(min(most, self.draft_factor * max(length, static))))
        if self._corpus is not None and static > length:
            following, width = self._corpus.following, self.max_children
            return best_first(reader.match[0], following, nodes, width=width)[:2]
        copied = reader.automaton.after(start, nodes)
        return copied, list(range(len(copied)))

    def _reader(self, sequence: Sequence) -> _Reader:
        reader: _Reader | None = sequence.state.get(self)
        if reader is None:
            reader = sequence.state[self] = _Reader(sequence.references)
        new = sequence.tokens[reader.read :]
        reader.automaton.extend(new)
        reader.read += len(new)
        if self._corpus is not None:
            for token in new:
                reader.match = self._corpus.step(reader.match, token)
        return reader

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        for sequence in sequences:
            self._reader(sequence)


class _Reader:
    """The automaton of a request's references and of its text, of which `read` tokens are read, and
    the match of the text's end in the corpus."""

    __slots__ = ("automaton", "match", "read")

    def __init__(self, references: Seq[Seq[int]]) -> None:
        self.automaton = SuffixAutomaton.after_texts(references)
        self.match: Match = START
        self.read = 0


def _automaton(
    corpus: StaticAutomaton | Seq[Seq[int]] | str | Path | None, vocab_size: int
) -> StaticAutomaton | None:
    """The corpus as an automaton, checked to be of this vocabulary."""
    if corpus is None:
        return None
    if isinstance(corpus, (str, Path)):
        return StaticAutomaton.load(corpus, vocab_size)
    automaton = corpus if isinstance(corpus, StaticAutomaton) else StaticAutomaton.of(corpus)
    automaton.check(vocab_size)
    return automaton

"""Drafters that force a case: whole acceptance, a rejection at a chosen place, any tree at all.

Legend: B sequences, N tree nodes, R proposal rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.draws import Draws
from foretoken.models.model import CausalLM
from foretoken.protocols import BaseDrafter
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence
from foretoken.testing.models import logits_after
from foretoken.tree import DraftTree, Kind, chains, empty
from foretoken.trees.from_lists import from_paths


@dataclass(eq=False)
class Oracle(BaseDrafter):
    """Proposes the text that the target is going to write, given to it beforehand.

    texts: prompt -> what follows it. wrong_at: a depth (from 0) at which another token is proposed,
    or None; with `cycle` it grows by one at every step, so every length of acceptance occurs.
    """

    texts: Mapping[tuple[int, ...], Seq[int]]
    num_speculative_tokens: int = 4
    wrong_at: int | None = None
    cycle: bool = False
    ignore_budget: bool = False

    wants = Wants("a")
    follows = True

    def bind(self, access: Access) -> None:
        self._device, self._vocab = access.device, access.vocab_size

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts = [self._next(s, b) for s, b in zip(sequences, budgets, strict=True)]
        return chains(drafts, self._device)

    def _next(self, sequence: Sequence, budget: int) -> list[int]:
        limit = self.num_speculative_tokens
        if not self.ignore_budget:
            limit = min(limit, budget)
        done = len(sequence.output)
        text = self.texts[tuple(sequence.tokens[: sequence.prompt_length])]
        draft = list(text[done : done + limit])
        if self.wrong_at is not None:
            turn = sequence.state.get(self, 0)
            sequence.state[self] = turn + 1
            place = (self.wrong_at + turn * self.cycle) % (self.num_speculative_tokens + 1)
            if place < len(draft):
                draft[place] = (draft[place] + 1) % self._vocab
        return draft


@dataclass(eq=False)
class Scripted(BaseDrafter):
    """Proposes the token paths that `paths(sequence, budget)` gives, merged into a tree."""

    paths: Callable[[Sequence, int], Seq[Seq[int]]]

    wants = Wants("b")
    trees = True

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return from_paths(
            [self.paths(s, b) for s, b in zip(sequences, budgets, strict=True)], self._device
        )


_LOGITS: WeakKeyDictionary[CausalLM, dict[tuple[int, ...], Tensor]] = WeakKeyDictionary()
_KEPT = 1000  # texts of a model, at most


@dataclass(eq=False)
class Drawn(BaseDrafter):
    """Draws a tree from `model`: `branches[d]` children of every node at depth d, of one kind.

    Slow and plain: a whole pass for every distribution, every sequence alone. All rows must have
    drafts of one size, so the loop cuts drafts to their budgets."""

    model: CausalLM
    branches: tuple[int, ...] = (1, 1)
    kind: Kind = Kind.INDEPENDENT

    wants = Wants("b")

    def __post_init__(self) -> None:
        self.kinds = frozenset({self.kind})
        self.trees = any(count > 1 for count in self.branches)

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        if not max(budgets):
            return empty(len(sequences), self._device)
        rows = [self._tree(s, draws.take([b])) for b, s in enumerate(sequences)]
        tokens, parents, distributions, places = zip(*rows, strict=True)
        return DraftTree(
            torch.tensor(tokens),
            [len(row) for row in tokens],
            parents=torch.tensor(parents) if self.trees else None,
            kind=self.kind,
            proposals=torch.stack([torch.stack(row) for row in distributions]),
            rows=torch.tensor(places),
        )

    def _tree(
        self, sequence: Sequence, draws: Draws
    ) -> tuple[list[int], list[int], list[Tensor], list[int]]:
        """Tokens, parent slots, distributions [R][V] and the row of each node, in draw order."""
        tokens, parents, distributions, rows = [], [], [], []
        level: list[tuple[int, list[int]]] = [(0, [])]
        for depth, count in enumerate(self.branches):
            below: list[tuple[int, list[int]]] = []
            drawn = 0
            for slot, path in level:
                distribution = self._distribution(sequence, path)
                distributions.append(distribution)
                for _ in range(count):
                    token = int(draws.draft(distribution[None], depth, drawn)[0])
                    drawn += 1
                    tokens.append(token)
                    parents.append(slot)
                    rows.append(len(distributions) - 1)
                    below.append((len(tokens), [*path, token]))
                    if self.kind is Kind.WITHOUT_REPLACEMENT:
                        distribution = distribution.clone()
                        distribution[token] = 0
                        # After the last possible token any is taken: rules don't accept it.
                        distribution = (
                            distribution if distribution.any() else torch.ones_like(distribution)
                        )
            level = below
        return tokens, parents, distributions, rows

    def _distribution(self, sequence: Sequence, path: list[int]) -> Tensor:
        text, known = (*sequence.tokens, *path), _LOGITS.setdefault(self.model, {})
        if text not in known:  # enumerations ask for the same few again and again
            if len(known) == _KEPT:
                known.clear()
            known[text] = logits_after(self.model, text)
        logits = known[text]
        return fold(logits[None, None], [sequence], lambda: [[path]]).probs[0, 0]

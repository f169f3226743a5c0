"""Suffix decoding: draft what most often followed the longest phrases that fit.

Source: Oliaro et al. 2025 (SuffixDecoding), sections 3 and 4. Two suffix trees are searched: one of
the request's `references` (SamplingParams), prompt and output, and one of the outputs of earlier
requests. Every phrase at the end of the text that a tree knows is tried: after a phrase of p tokens
the likeliest min(most, factor · p + offset) nodes are drafted, likeliest by relative counts, as a
tree (`max_children` 1: as a path). The draft with the highest sum of their probabilities wins.
Departures: the bound on the memory counts tokens, not requests; in the request's own tree an
occurrence in its text counts once the text after it differs from the text before it.
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
from foretoken.lookup.earlier_outputs import AT_ONCE, EarlierTexts, Slices
from foretoken.lookup.suffix_tree import SuffixTree
from foretoken.protocols import BaseDrafter, Step
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree
from foretoken.trees.best_first import NONE, Branches, best_first
from foretoken.trees.from_lists import from_parents


@dataclass(eq=False)
class Suffix(BaseDrafter):
    """num_speculative_tokens: most nodes; max_tree_depth: longest phrase with what follows it;
    max_spec_factor, max_spec_offset: nodes for each token of the phrase; min_token_prob: least
    probability of a node's path; max_children: of a node, None for all; max_cached_tokens: how much
    of earlier outputs is stored, about 0.3 KB a token, 0 for none."""

    num_speculative_tokens: int = 16
    max_tree_depth: int = 64
    max_spec_factor: float = 1.0
    max_spec_offset: float = 0.0
    min_token_prob: float = 0.1
    max_children: int | None = None
    max_cached_tokens: int = 100_000

    wants = Wants("ab")
    follows = True
    trees = True

    def __post_init__(self) -> None:
        check_range(0, 1, min_token_prob=self.min_token_prob)
        if self.num_speculative_tokens < 1 or self.max_tree_depth < 2:
            raise ForetokenError(
                f"num_speculative_tokens is {self.num_speculative_tokens} and max_tree_depth "
                f"{self.max_tree_depth}; they must be at least 1 and 2."
            )
        if self.max_spec_factor < 0 or self.max_children == 0:
            raise ForetokenError(
                f"max_spec_factor is {self.max_spec_factor} and max_children {self.max_children}; "
                "they must be at least 0 and 1."
            )
        if self.max_children == 1:
            self.wants, self.trees = Wants("a"), False
        check_range(1, MOST_NODES, num_speculative_tokens=self.num_speculative_tokens)
        check_range(1, MOST_NODES, max_children=self.max_children)
        check_range(2, MOST_NODES, max_tree_depth=self.max_tree_depth)
        check_range(0, math.inf, max_cached_tokens=self.max_cached_tokens)

    @property
    def nodes(self) -> int:
        return self.num_speculative_tokens

    def bind(self, access: Access) -> None:
        self._device: torch.device = access.device
        self.shared: EarlierTexts[SuffixTree] | None = None
        if self.max_cached_tokens:
            self.shared = EarlierTexts(
                SuffixTree(self.max_tree_depth), self.max_cached_tokens, access.vocab_size
            )

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        share, others = self._share(sequences), None
        if self.shared is not None:
            others = self.shared.index
        branches = [
            self.guess(
                sequence,
                min(self.num_speculative_tokens, budget),
                others if shares(sequence) else None,
                share,
            )
            for sequence, budget in zip(sequences, budgets, strict=True)
        ]
        return from_parents(
            [b.tokens for b in branches], [b.parents for b in branches], self._device
        )

    def guess(
        self, sequence: Sequence, most: int, others: SuffixTree | None, share: int = AT_ONCE
    ) -> Branches:
        """The draft; its score is the expected number of accepted tokens by the counts. others: the
        tree of what others wrote. share: see `_own_tree`."""
        tree = self._own_tree(sequence, share)
        tail = array("i", sequence.tokens[1 - self.max_tree_depth :])
        whole = tree.read == len(sequence.tokens)
        best = self._best(tree, tail, tree.repeated if whole else tree.longest(tail), most, NONE)
        if others is not None:
            best = self._best(others, tail, others.longest(tail), most, best)
        return best

    def _best(
        self, tree: SuffixTree, tail: array[int], longest: int, most: int, best: Branches
    ) -> Branches:
        """The best draft of a tree for the phrases of at most `longest` tokens, or `best`."""

        def bound(length: int) -> int:
            """No score is higher: neither a node nor a level of nodes has a probability over 1."""
            return min(self._nodes(length, most), tree.depth - length)

        for length in sorted(range(longest, 0, -1), key=bound, reverse=True):
            if bound(length) <= best.score:
                break
            place = tree.find(tail[-length:])
            if place is None:
                continue
            branches = best_first(
                place,
                tree.following,
                self._nodes(length, most),
                least=self.min_token_prob,
                width=self.max_children,
            )
            if branches.score > best.score:
                best = branches
        return best

    def _nodes(self, length: int, most: int) -> int:
        return int(min(most, self.max_spec_factor * length + self.max_spec_offset))

    def _share(self, sequences: Seq[Sequence]) -> int:
        """Tokens that each one's tree may take in now; more than a step writes."""
        return max(self.max_tree_depth, AT_ONCE // max(1, len(sequences)))

    def _own_tree(self, sequence: Sequence, share: int) -> SuffixTree:
        """The tree of the request's references and its text so far. It takes in `share` tokens of
        them at most: a long prompt that was not read, as a cache had it, takes several steps."""
        own: _Own | None = sequence.state.get(self)
        if own is None:
            tree = SuffixTree(self.max_tree_depth)
            own = sequence.state[self] = _Own(tree, Slices(tree.add))
            for mark, text in enumerate(sequence.references, 1):
                own.references.put(array("i", [*text, -mark]), len(text))
        left = own.references.do(share)
        own.tree.grow(sequence.tokens[own.tree.read : own.tree.read + left])
        return own.tree

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        share = self._share(sequences)
        for sequence, step in zip(sequences, steps, strict=True):
            self._own_tree(sequence, max(share, step.read))

    def end(self, sequences: Seq[Sequence]) -> None:
        if self.shared is not None:
            for sequence in filter(shares, sequences):
                self.shared.add(sequence.output)


@dataclass(slots=True)
class _Own:
    """What a request keeps: its tree, and its references on their way into it."""

    tree: SuffixTree
    references: Slices
